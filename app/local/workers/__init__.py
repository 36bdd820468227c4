"""The workers of `longhaul up`: which there are, and their devices."""
