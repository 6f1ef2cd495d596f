"""What people who run jobs read: explanations, groups of failures, and how times and counts are written."""
