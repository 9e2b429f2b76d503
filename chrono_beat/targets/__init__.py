"""What runs where no Celery task of the user's does: calls of HTTP targets."""
