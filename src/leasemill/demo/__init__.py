"""What `leasemill demo` needs: its jobs and their audit, its worker processes, the marks their handlers leave."""
