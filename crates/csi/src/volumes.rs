//! What the services need of whoever has the volumes: one trait for making them, one for using them on a node.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::time::Instant;

use crate::error::Error;
use crate::request::{Access, Size};

/// Volumes, wherever they are.
pub trait Volumes: Send + Sync + 'static {
    /// The id that a volume of this name has, or will have.
    fn id(&self, name: &str) -> String;

    /// Whether volumes can be used in all these ways; the mistake names its field.
    fn supports(&self, _access: &[Access]) -> Result<(), Error> {
        Ok(())
    }

    /// Makes a volume, or finds the one that the same request has made.
    fn create(
        &self,
        request: NewVolume,
        deadline: Instant,
    ) -> impl Future<Output = Result<Volume, Error>> + Send;

    /// Removes a volume. One that is not there is removed already.
    fn delete(&self, id: &str, deadline: Instant) -> impl Future<Output = Result<(), Error>> + Send;

    /// Finds a volume.
    fn get(&self, id: &str) -> impl Future<Output = Result<Volume, Error>> + Send;

    /// Why a volume cannot be used in all these ways; nothing if it can.
    fn objection(
        &self,
        id: &str,
        access: &[Access],
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send;

    /// All volumes.
    fn list(&self) -> impl Future<Output = Result<Vec<Volume>, Error>> + Send;

    /// Grows a volume. Returns its size.
    fn grow(
        &self,
        id: &str,
        size: Size,
        deadline: Instant,
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// What can still be had with these parameters for these ways of access, on a node or on any.
    fn capacity(
        &self,
        parameters: &BTreeMap<String, String>,
        access: &[Access],
        node: Option<&str>,
    ) -> impl Future<Output = Result<Capacity, Error>> + Send;

    /// What a snapshot of this name is locked by while it is made: its id, where that is known before.
    fn snapshot_id(&self, name: &str) -> String;

    /// Makes a snapshot, or finds the one that the same request has made.
    fn snapshot(
        &self,
        name: &str,
        source: &str,
        deadline: Instant,
    ) -> impl Future<Output = Result<Snapshot, Error>> + Send;

    /// Removes a snapshot. One that is not there is removed already.
    fn delete_snapshot(&self, id: &str, deadline: Instant) -> impl Future<Output = Result<(), Error>> + Send;

    /// All snapshots.
    fn snapshots(&self) -> impl Future<Output = Result<Vec<Snapshot>, Error>> + Send;
}

/// Volumes of this node, for those who use them on it.
pub trait NodeVolumes: Send + Sync + 'static {
    /// Makes a volume visible at a path.
    fn publish(&self, request: Publish, deadline: Instant) -> impl Future<Output = Result<(), Error>> + Send;

    /// Hides it again.
    fn unpublish(&self, id: &str, target: PathBuf) -> impl Future<Output = Result<(), Error>> + Send;

    /// How full it is.
    fn stats(&self, id: &str, path: PathBuf) -> impl Future<Output = Result<Stats, Error>> + Send;

    /// Makes a published filesystem as large as its volume. Returns the volume's size.
    fn grow_published(
        &self,
        id: &str,
        path: PathBuf,
        deadline: Instant,
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// How large a volume is, in bytes.
    fn size(&self, id: &str) -> impl Future<Output = Result<u64, Error>> + Send;
}

/// A volume that shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewVolume {
    /// The name that the caller gave it.
    pub name: String,
    /// How large.
    pub size: Size,
    /// For which ways of access.
    pub access: Vec<Access>,
    /// Parameters of its class.
    pub parameters: BTreeMap<String, String>,
    /// What it is a copy of.
    pub source: Option<Source>,
    /// The nodes that it may be on, the best first; any if there are none.
    pub nodes: Vec<String>,
}

/// What a volume is a copy of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Of this snapshot.
    Snapshot(String),
    /// Of this volume.
    Volume(String),
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// By which callers know it.
    pub id: String,
    /// In bytes.
    pub size: u64,
    /// What it was made from.
    pub source: Option<Source>,
    /// The node that has it.
    pub node: String,
    /// How it is.
    pub condition: Condition,
}

/// How a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Whether something is wrong.
    pub abnormal: bool,
    /// What, for people.
    pub message: String,
}

/// What can still be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// In all.
    pub available: u64,
    /// In one volume.
    pub largest: u64,
    /// The least that a volume can have.
    pub least: u64,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// By which callers know it.
    pub id: String,
    /// Of which volume.
    pub source: String,
    /// In bytes.
    pub size: u64,
    /// When, in seconds since 1970.
    pub created: i64,
    /// Whether its bytes are those of that moment.
    pub ready: bool,
}

/// A volume that shall be visible at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// Which.
    pub id: String,
    /// Where.
    pub target: PathBuf,
    /// How.
    pub access: Access,
    /// Whether it may only be read.
    pub read_only: bool,
}

/// How full a published volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Bytes: total, used, available. A block device has only a total; what cannot be measured any more has nothing.
    pub bytes: Option<(u64, Option<(u64, u64)>)>,
    /// Inodes: total, used, available, where the filesystem counts them.
    pub inodes: Option<(u64, u64, u64)>,
    /// How it is.
    pub condition: Condition,
}
