"""Adapters to and from Captum and Quantus."""
