"""Statistics of measurements: confidence intervals, paired tests, power and scaling laws."""
