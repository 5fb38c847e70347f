"""What takes the topic's messages: three channels that land lines in spools for the job, and one that keeps the block list."""
