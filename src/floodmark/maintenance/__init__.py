"""Behind the watermark: what keeps a store small and sound, and proves that nothing was lost."""
