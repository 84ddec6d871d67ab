"""ALFWorld (Shridhar et al. 2021, arXiv:2010.03768): household text games, native or by TextWorld."""
