//! The volumes of this host, for a CSI client that is alone with it. All that is known of them is in LVM's metadata.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use lvms_csi::request::{Access, How, Size};
use lvms_csi::volumes::{Capacity, NewVolume, Snapshot, Source, Volume};
use lvms_csi::{Error, Volumes};
use lvms_host::desired::Desired;
use lvms_host::filesystem::Filesystem;
use lvms_host::lvm::Inventory;
use lvms_host::mount::Flags;
use lvms_host::plan::volume::is_for_block;
use lvms_host::publish::{Manner, admits};
use lvms_host::runner::Linux;
use lvms_host::units::Bytes;
use lvms_host::volumes::Volumes as Engine;
use lvms_node::host_volumes::{HostVolumes, New, Present, is_ready};
use lvms_node::known::{DEVICE_CLASS, Found, OPTION_CLASS, all, class, named, options_for, source_of};
use lvms_node::published::{told, wanted};
use lvms_node::status;
use uuid::Uuid;

/// From these and a name come the names of volumes and snapshots.
const VOLUMES: Uuid = Uuid::from_u128(0x6c76_6d73_2e69_6f2f_766f_6c75_6d65_0001);
const SNAPSHOTS: Uuid = Uuid::from_u128(0x6c76_6d73_2e69_6f2f_736e_6170_7368_0001);

/// The smallest volume for a block device.
const LEAST_BLOCK: Bytes = Bytes::mib(8);

/// The volumes of this host.
pub(crate) struct LocalVolumes {
    pub(crate) host: Arc<HostVolumes>,
    /// The node that this host is.
    pub(crate) node: String,
}

/// The least size of a volume for a way of access, as TopoLVM has it.
pub(crate) fn least(access: &Access) -> u64 {
    match &access.how {
        How::Block => LEAST_BLOCK.0,
        How::Filesystem { kind, .. } => Filesystem::named(kind).map_or(0, |kind| kind.least().0),
    }
}

fn parameter<'a>(parameters: &'a BTreeMap<String, String>, keys: [&str; 2]) -> &'a str {
    keys.iter().find_map(|key| parameters.get(*key)).map(String::as_str).unwrap_or_default()
}

fn volume(engine: &Arc<Engine<Linux>>, node: &str, found: &Found<'_>) -> Volume {
    Volume {
        node: node.to_owned(),
        id: found.path.volume.to_string(),
        size: found.volume.size.0,
        source: source_of(&found.facts),
        condition: told(engine.condition(&found.path)),
    }
}

fn snapshot(engine: &Arc<Engine<Linux>>, found: &Found<'_>) -> Snapshot {
    let source = match source_of(&found.facts) {
        Some(Source::Volume(id) | Source::Snapshot(id)) => id,
        None => String::new(),
    };
    Snapshot {
        id: found.path.volume.to_string(),
        source,
        size: found.volume.size.0,
        created: found.facts.created.and_then(|created| i64::try_from(created).ok()).unwrap_or_default(),
        ready: is_ready(engine, found),
    }
}

/// Whether a volume may be used as a capability says.
fn admitted(inventory: &Inventory, found: &Found<'_>, capability: &str, how: &How) -> Result<(), Error> {
    let (manner, field) = match how {
        How::Block => (Manner::Block, "block"),
        How::Filesystem { kind, .. } => {
            (Manner::Filesystem(wanted(capability, &found.facts, kind)?), "mount")
        }
    };
    admits(inventory, &found.path, manner).map_err(|error| {
        let error = status::of_publish(&error);
        Error::new(error.kind, format!("{capability}.{field}: {}", error.message))
    })
}

fn found(present: &Present) -> Found<'_> {
    Found { path: present.path.clone(), volume: &present.volume, facts: present.facts() }
}

impl Volumes for LocalVolumes {
    fn id(&self, name: &str) -> String {
        Uuid::new_v5(&VOLUMES, name.as_bytes()).to_string()
    }

    fn supports(&self, access: &[Access]) -> Result<(), Error> {
        for (position, access) in access.iter().enumerate() {
            let How::Filesystem { kind, flags } = &access.how else { continue };
            let field = format!("volume_capabilities[{position}].mount");
            if Filesystem::named(kind).is_none() {
                let known = Filesystem::ALL.map(Filesystem::name).join(", ");
                let problem = format!("{kind:?} is no filesystem that is made here: use one of {known}");
                return Err(Error::invalid(&format!("{field}.fs_type"), problem));
            }
            Flags::parse(flags, false)
                .map_err(|error| Error::invalid(&format!("{field}.mount_flags"), error))?;
        }
        Ok(())
    }

    async fn create(&self, request: NewVolume, deadline: Instant) -> Result<Volume, Error> {
        self.supports(&request.access)?;
        if !request.nodes.is_empty() && !request.nodes.contains(&self.node) {
            let problem = format!("none of them is {}, and volumes can be made only there", self.node);
            return Err(Error::invalid("accessibility_requirements", problem));
        }
        let source = request.source.clone().map(|source| {
            let kind = match source {
                Source::Snapshot(_) => "snapshot",
                Source::Volume(_) => "volume",
            };
            (format!("volume_content_source.{kind}"), source)
        });
        let block = request.access.iter().any(|access| access.how == How::Block);
        let kind = request.access.iter().find_map(|access| match &access.how {
            How::Filesystem { kind, .. } if !kind.is_empty() => Some(kind.clone()),
            How::Filesystem { .. } | How::Block => None,
        });
        let new = New {
            kind: kind.unwrap_or_default(),
            id: self.id(&request.name),
            claim: None,
            class: parameter(&request.parameters, DEVICE_CLASS).to_owned(),
            options: parameter(&request.parameters, OPTION_CLASS).to_owned(),
            size: Bytes(request.size.required),
            limit: request.size.limit.map(Bytes),
            block,
            filesystem: request.access.iter().any(|access| access.how != How::Block),
            source,
            name: request.name,
        };
        let (made, node) = (self.host.make(new, Some(deadline)).await?, self.node.clone());
        self.host.blocking(move |engine, _| Ok(volume(engine, &node, &found(&made)))).await
    }

    async fn delete(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        self.host.remove(id, false, Some(deadline)).await
    }

    async fn get(&self, id: &str) -> Result<Volume, Error> {
        let (id, node) = (id.to_owned(), self.node.clone());
        let look = move |engine: &Arc<Engine<Linux>>, desired: &Desired| {
            let inventory = engine.inventory();
            Ok(volume(engine, &node, &named(desired, &inventory, "volume_id", &id, false)?))
        };
        self.host.blocking(look).await
    }

    async fn objection(&self, id: &str, access: &[Access]) -> Result<Option<String>, Error> {
        let (id, access) = (id.to_owned(), access.to_vec());
        let look = move |engine: &Arc<Engine<Linux>>, desired: &Desired| {
            let inventory = engine.inventory();
            let found = named(desired, &inventory, "volume_id", &id, false)?;
            let refused = access.iter().enumerate().find_map(|(position, access)| {
                let capability = format!("volume_capabilities[{position}]");
                admitted(&inventory, &found, &capability, &access.how).err()
            });
            Ok(refused.map(|error| error.message))
        };
        self.host.blocking(look).await
    }

    async fn list(&self) -> Result<Vec<Volume>, Error> {
        let node = self.node.clone();
        let look = move |engine: &Arc<Engine<Linux>>, desired: &Desired| {
            let inventory = engine.inventory();
            let volumes = all(desired, &inventory).filter(|found| !found.facts.snapshot);
            Ok(volumes.map(|found| volume(engine, &node, &found)).collect())
        };
        self.host.blocking(look).await
    }

    async fn grow(&self, id: &str, size: Size, deadline: Instant) -> Result<u64, Error> {
        let limit = size.limit.map(Bytes);
        Ok(self.host.enlarge(id, Bytes(size.required), limit, Some(deadline)).await?.0)
    }

    async fn capacity(
        &self,
        parameters: &BTreeMap<String, String>,
        access: &[Access],
        node: Option<&str>,
    ) -> Result<Capacity, Error> {
        if node.is_some_and(|node| node != self.node) {
            return Ok(Capacity { available: 0, largest: 0, least: LEAST_BLOCK.0 });
        }
        let named =
            (parameter(parameters, DEVICE_CLASS).to_owned(), parameter(parameters, OPTION_CLASS).to_owned());
        let block = access.iter().any(|access| access.how == How::Block);
        let look = move |engine: &Arc<Engine<Linux>>, desired: &Desired| {
            let (class, options) = class(desired, &named.0, &named.1)?;
            if block && !is_for_block(&engine.inventory(), class) {
                return Ok(Bytes::ZERO);
            }
            // Whatever refuses a new volume means that there is none to be had.
            Ok(engine.capacity(class, &options_for(class, options)).unwrap_or_default())
        };
        let largest = self.host.blocking(look).await?;
        Ok(Capacity { available: largest.0, largest: largest.0, least: LEAST_BLOCK.0 })
    }

    fn snapshot_id(&self, name: &str) -> String {
        Uuid::new_v5(&SNAPSHOTS, name.as_bytes()).to_string()
    }

    async fn snapshot(&self, name: &str, source: &str, deadline: Instant) -> Result<Snapshot, Error> {
        let id = self.snapshot_id(name);
        let made = self.host.take_snapshot(id, name.to_owned(), source.to_owned(), Some(deadline)).await?;
        self.host.blocking(move |engine, _| Ok(snapshot(engine, &found(&made)))).await
    }

    async fn delete_snapshot(&self, id: &str, deadline: Instant) -> Result<(), Error> {
        self.host.remove(id, true, Some(deadline)).await
    }

    async fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let look = |engine: &Arc<Engine<Linux>>, desired: &Desired| {
            let inventory = engine.inventory();
            let snapshots = all(desired, &inventory).filter(|found| found.facts.snapshot);
            Ok(snapshots.map(|found| snapshot(engine, &found)).collect())
        };
        self.host.blocking(look).await
    }
}
