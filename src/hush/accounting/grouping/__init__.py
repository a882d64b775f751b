"""Groups of records: the single record's power curve composed with itself (Dong, Roth, Su 2022, Theorem 3).

grouped     which group is answered how
rounds      epsilon and delta: looks around the links of a chain, until both bounds meet
doubling    the same for groups of any size: gains composed with themselves, over what stretch touching says
drawn       the same from whole curves, where losses with a largest value meet others
record      such a curve of a single record
seen        what a group loses at least, at a glance
chains      what looks at a single record's curve prove of its group
links       a model that says where the links are; rough makes one, by saddles or bins
asked       a curve that is asked often, from lines that are kept; makers sets them up, samples those of Gaussian steps
powers      power curves in logarithms
"""
