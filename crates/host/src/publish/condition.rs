//! How a published volume is, as the kernel has it now.

use super::PublishError;
use crate::dm::{PoolState, Raid};
use crate::lvm::inventory::Kind;
use crate::names::VolumePath;
use crate::runner::{Linux, Runner};
use crate::volumes::Volumes;

/// How a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Whether something is wrong.
    pub abnormal: bool,
    /// What, for people.
    pub message: String,
}

impl Volumes<Linux> {
    /// How a volume is, without a process.
    pub fn condition(&self, path: &VolumePath) -> Condition {
        let problems = self.problems(path);
        let abnormal = !problems.is_empty();
        let message = if abnormal {
            problems.join("; ")
        } else {
            let healthy = "volume is healthy and operating normally";
            let syncing = self.syncing(path).map(|raid| format!("{healthy}; RAID {raid}"));
            syncing.unwrap_or_else(|| healthy.to_owned())
        };
        Condition { abnormal, message }
    }

    /// The RAID whose images do not all have the same bytes yet.
    fn syncing(&self, path: &VolumePath) -> Option<Raid> {
        self.runner().raid(path).ok().flatten().filter(|raid| !raid.is_in_sync())
    }

    fn problems(&self, path: &VolumePath) -> Vec<String> {
        let linux = self.runner();
        let inventory = self.inventory();
        let mut problems = Vec::new();
        let Some(volume) = inventory.volume(path) else { return vec![format!("there is no volume {path}")] };
        if let Some(stuck) = self.stuck(&path.group) {
            problems.push(stuck.to_string());
        }
        let mut is_whole = true;
        if let Some(group) = inventory.groups.get(&path.group) {
            for disk in group.disks.iter().filter(|disk| disk.missing || disk.is_gone()) {
                is_whole = false;
                problems.push(format!("disk {} of volume group {} is missing", disk.told(), group.name));
            }
        }
        if let Ok(Some(device)) = linux.device(&path.mapper_name()) {
            if device.suspended {
                problems.push("its device is suspended".to_owned());
            }
            if is_whole && matches!(linux.is_orphaned(&path.mapper_name()), Ok(true)) {
                problems.push(if matches!(volume.kind, Kind::Thin { .. }) {
                    PublishError::Orphaned(path.clone()).to_string()
                } else {
                    "its disk was taken away and is back as another device: unpublish it everywhere, then it works again"
                        .to_owned()
                });
            }
        }
        if let Ok(Some(raid)) = linux.raid(path)
            && raid.is_degraded()
        {
            problems.push(format!("RAID is degraded: {raid}"));
        }
        if let Kind::Thin { pool, .. } = &volume.kind {
            let pool = VolumePath { group: path.group.clone(), volume: pool.clone() };
            match Runner::pool(linux, &pool) {
                Ok(Some(state)) if state.state == PoolState::OutOfData => {
                    problems.push(format!("thin pool {pool} is full: writes fail"));
                }
                Ok(Some(state)) if state.state != PoolState::Good || state.needs_check => {
                    problems.push(format!("thin pool {pool} cannot be written"));
                }
                Ok(_) => {}
                Err(error) => problems.push(format!("thin pool {pool} cannot be looked at: {error}")),
            }
        }
        problems
    }
}
