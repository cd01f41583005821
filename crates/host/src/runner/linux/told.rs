//! What the devices of volumes say of their state. A volume itself may be a layer beneath the device of its name.

use std::io;
use std::path::Path;

use super::Linux;
use crate::dm::{Control, Pool, Target};
use crate::names::VolumePath;

/// With snapshots, a volume itself is this layer beneath what its users see.
pub(super) const BENEATH_SNAPSHOTS: &str = "-real";

/// A pool itself is this layer beneath the volume of its name.
const POOL: &str = "-tpool";

impl Linux {
    /// What the device of a volume says, or that of this layer beneath it if there is one.
    pub(super) fn told_by<T>(
        &self,
        volume: &VolumePath,
        layer: &str,
        kind: &str,
        tells: impl Fn(&Target) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let control = self.control()?;
        let name = at_layer(&control, volume, layer)?;
        Ok(control.targets(&name, kind)?.iter().find_map(tells))
    }

    /// What a thin pool says. It may wait for its disks.
    pub(super) fn told_by_pool(&self, pool: &VolumePath) -> io::Result<Option<Pool>> {
        let name = at_layer(&self.control()?, pool, POOL)?;
        let device = Path::new("/dev/mapper").join(&name);
        let ask = move |_: &Path| Control::open()?.targets(&name, "thin-pool");
        let told = self.on_host(|| self.reading.read(&[&device], ask))?.pop().flatten();
        let told = told.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "its disks do not answer"))?;
        Ok(told?.iter().find_map(Target::pool))
    }
}

/// The name of this layer beneath a volume, or of its own device if there is no such layer.
pub(super) fn at_layer(control: &Control, volume: &VolumePath, layer: &str) -> io::Result<String> {
    let name = volume.mapper_name();
    let beneath = format!("{name}{layer}");
    Ok(if control.device(&beneath)?.is_some() { beneath } else { name })
}
