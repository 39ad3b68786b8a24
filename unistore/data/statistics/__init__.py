"""Statistics of samples: moments and histograms in one pass, the file that keeps them, and what is asked."""
