"""Who runs the steps of a conversion: threads, worker processes, a dask cluster."""
