"""The API process and everything that the API and the workers share."""
