//! Memory of this process: what is free goes back to the host.

/// glibc gives threads heaps of their own, eight for each processor, and keeps in each what is free there. A thread of
/// ours lives for one request, and holds an inventory for a moment: they share one heap.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets numbers of the allocator's, under the allocator's own lock.
    #[expect(unsafe_code)]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
    }
}
