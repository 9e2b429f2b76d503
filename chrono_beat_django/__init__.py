"""chrono_beat's models, store, admin and commands for Django."""
