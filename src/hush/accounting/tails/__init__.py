"""Heavy tails, those of projected norms above all: paths sorted by their largest loss, a contour integral for each.

heavy       epsilon and delta: rounds of looks until both bounds meet
cells       where to look: losses in cells by their size, brackets of cells, lines and bins for them
sides       the two finite laws around the steps, and certified curves from them
brackets    paths by their largest loss
binning     laws in bins; faint has those below any floating-point number
"""
