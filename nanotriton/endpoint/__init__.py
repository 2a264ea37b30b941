"""A client of servers that speak the chat-completions protocol: client.py asks, answer.py reads."""
