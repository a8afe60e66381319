"""Reading and judging models: findings, statistics, hashes, differences."""
