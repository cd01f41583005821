//! Tools that make, check and grow filesystems: long works of their group, one at a time on a device. Each has a thread
//! of its own that sees it to its end, whoever still waits for it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::{PublishError, system};
use crate::lvm::inventory::DeviceNumber;
use crate::names::VolumePath;
use crate::queue::Long;
use crate::runner::{Claim, Linux};
use crate::units::Bytes;
use crate::volumes::{self, Volumes};

/// Whoever names no deadline waits as long for a tool. It goes on.
const PATIENCE: Duration = Duration::from_secs(3600);

impl Volumes<Linux> {
    /// Waits until no tool works on a device. What is on it does not change by a tool of ours until the claim is dropped.
    pub(super) fn claim(
        &self,
        path: &VolumePath,
        device: DeviceNumber,
        deadline: Option<Instant>,
    ) -> Result<Arc<Claim>, PublishError> {
        let deadline = deadline.unwrap_or_else(|| Instant::now() + PATIENCE);
        let claim = self.runner().claim(device, deadline);
        let claim = claim.map_err(system("claiming", Path::new(&path.mapper_name())))?;
        claim.map(Arc::new).ok_or_else(|| PublishError::Busy(path.clone()))
    }

    /// Does what may take long on a slow disk, and then what has to follow it, for which others need not wait.
    pub(super) fn with_tools(
        self: &Arc<Self>,
        path: &VolumePath,
        what: &'static str,
        claim: &Arc<Claim>,
        deadline: Option<Instant>,
        act: impl FnOnce(&Arc<Volumes<Linux>>, &Claim) -> Result<(), PublishError> + Send + 'static,
        then: impl FnOnce(&Arc<Volumes<Linux>>) -> Result<(), PublishError> + Send + 'static,
    ) -> Result<(), PublishError> {
        let (volumes, volume, claim) = (Arc::clone(self), path.clone(), Arc::clone(claim));
        let size = self.inventory().volume(path).map_or(Bytes::ZERO, |volume| volume.size);
        let (tell, told) = sync_channel(1);
        let span = tracing::Span::current();
        let failed = |error| system(what, &Linux::device_path(path))(error);
        let with_tools = move || {
            let _span = span.enter();
            let work = || {
                let done = volumes.long(Long::Tool, &volume, what, deadline, |progress| {
                    progress(Bytes::ZERO, size);
                    act(&volumes, &claim)
                });
                done.map_err(|error| volumes::Error::from(error).into())
                    .flatten()
                    .and_then(|()| then(&volumes))
            };
            let done = volumes.runner().together(|| span.in_scope(work));
            let done = done.map_err(system(what, &Linux::device_path(&volume))).flatten();
            // Whoever is answered may begin the next tool.
            drop(claim);
            if let Err(Err(error)) = tell.send(done).map_err(|unheard| unheard.0) {
                let error = crate::causes::told(&error);
                tracing::warn!(volume = %volume, what, error, "failed after all had gone who waited");
            }
        };
        std::thread::Builder::new().name(what.into()).spawn(with_tools).map_err(failed)?;
        let left = deadline.map_or(PATIENCE, |deadline| deadline.saturating_duration_since(Instant::now()));
        told.recv_timeout(left).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(PublishError::Busy(path.clone())),
            RecvTimeoutError::Disconnected => Err(failed(std::io::Error::other("a thread panicked"))),
        })
    }
}
