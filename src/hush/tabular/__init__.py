"""Reading other people's data, and turning it into numbers without looking at it twice.

`cells` reads one cell; `tables`, `arrays`, `images` and `data` read files; `schema` is what their owner declares;
`columns` are the public maps from cells to features; `survey` releases, with noise and for a charge, what nobody
declared; `holdout` puts records aside by a coin each.  Nothing is decided by the private records except in `survey`.
"""
