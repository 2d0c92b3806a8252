"""Models out of the house and into it: bundle, export, publish, fetch-model, generate."""
