"""Who abuses the site: evidence is kept, what every address did is counted, and judged."""
