"""WebShop (Yao et al. 2022, arXiv 2207.01206): a web shop in text, played in process."""
