"""Experts in CUDA C++: routing and both products of few rows, and the products of many."""
