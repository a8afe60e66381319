"""Reads models and judges: findings, statistics, hashes, differences, matches."""
