"""Conversations: messages, and the templates that lay them out as tokens."""
