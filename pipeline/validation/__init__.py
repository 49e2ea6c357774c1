"""What is wrong with the data: findings with a severity, a sentence and a remedy."""
