//! A lab: guests and a control plane in namespaces of their own, which die with the command that made them.
//!
//! A command that needs a lab prepares everything outside ([`Prepared`]), where the package registries can be
//! reached, and then enters the namespaces ([`namespace::enter`]): it runs itself again with the same arguments, as
//! process 1 of the lab, in the run's own directory. All paths inside are relative to that directory, which keeps
//! sockets' names short wherever the checkout lies.

mod control;
pub(crate) mod namespace;
mod network;
pub(crate) mod runs;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use anyhow::{Context, Result};
use lab_protocol::disk::Disk;
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::cluster::programs::{NodeFile, Programs, Version};
use crate::guest::Guest;
use crate::guest::kernel::{self, Kernel};
use crate::guest::medium::Medium;
use crate::lab::network::Network;
use crate::packages::root::{self, Root};
use crate::suites::Suite;
use crate::workspace;

/// What was made ready outside, and is used inside.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Prepared {
    root: Root,
    kernel: Kernel,
    /// Test binaries that run in guests, by their names in the share.
    pub(crate) tests: Vec<PathBuf>,
    /// Suites of tests to run.
    pub(crate) suites: Vec<Suite>,
    /// Where labs that run at the same time claim their tests.
    pub(crate) claims: PathBuf,
    /// What a cluster is made of, if there shall be one.
    pub(crate) programs: Option<Programs>,
}

/// The file in the run's directory that carries [`Prepared`] inside.
const PREPARED: &str = "prepared.json";

impl Prepared {
    /// Makes ready what every guest needs, in the run's directory.
    pub(crate) fn make(cache: &Cache, run: &Path) -> Result<Prepared> {
        let root = root::root(cache)?;
        let agent = workspace::build_static("lab-agent")?;
        fs::create_dir_all(run.join("share"))?;
        fs::copy(std::env::current_exe()?, run.join("share/xtask"))?;
        let kernel = kernel::choose(cache, &root, &agent, run)?;
        static TOLD: Once = Once::new();
        TOLD.call_once(|| eprintln!("  guests run with {}", kernel.accelerator.told()));
        let claims = PathBuf::from("claims");
        Ok(Prepared { root, kernel, tests: Vec::new(), suites: Vec::new(), claims, programs: None })
    }

    /// Makes ready what a cluster needs; `more` are files for its nodes.
    pub(crate) fn with_cluster(
        &mut self,
        cache: &Cache,
        run: &Path,
        version: Version,
        more: &[NodeFile],
    ) -> Result<()> {
        self.programs = Some(Programs::make(cache, &self.root, version, run, more)?);
        Ok(())
    }

    /// Puts a program where every guest sees it, under `/lab`.
    pub(crate) fn share(&self, run: &Path, program: &Path) -> Result<PathBuf> {
        let name = program.file_name().context("a program has a name")?;
        self.share_as(run, program, Path::new(name))?;
        Ok(PathBuf::from(name))
    }

    /// The same, under another name.
    pub(crate) fn share_as(&self, run: &Path, program: &Path, name: &Path) -> Result<()> {
        let shared = run.join("share").join(name);
        fs::copy(program, &shared).with_context(|| program.display().to_string())?;
        Ok(())
    }

    /// Shares a test binary.
    pub(crate) fn share_test(&mut self, run: &Path, program: &Path) -> Result<()> {
        let name = self.share(run, program)?;
        self.tests.push(name);
        Ok(())
    }

    /// What a cluster is made of.
    pub(crate) fn programs(&self) -> Result<&Programs> {
        self.programs.as_ref().context("this lab was prepared without Kubernetes")
    }

    /// Leaves it for the inside.
    pub(crate) fn save(&self, run: &Path) -> Result<()> {
        Ok(fs::write(run.join(PREPARED), serde_json::to_vec(self)?)?)
    }

    /// Finds it inside.
    pub(crate) fn load() -> Result<Prepared> {
        Ok(serde_json::from_slice(&fs::read(PREPARED)?)?)
    }
}

/// The lab that this process is in.
pub(crate) struct Lab {
    pub(crate) root: Root,
    pub(crate) kernel: Kernel,
    /// What guests see as `/lab`.
    pub(crate) share: PathBuf,
    pub(crate) network: Network,
    guests: Mutex<Vec<Weak<Guest>>>,
}

impl Lab {
    /// Sets up the network and listens for what tests in guests ask.
    pub(crate) fn start(prepared: &Prepared) -> Result<Arc<Lab>> {
        let lab = Arc::new(Lab {
            root: prepared.root.clone(),
            kernel: prepared.kernel.clone(),
            share: "share".into(),
            network: Network::up()?,
            guests: Mutex::default(),
        });
        control::listen(&lab)?;
        Ok(lab)
    }

    /// A file of this run.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    /// A blank disk, not plugged in anywhere.
    pub(crate) fn new_disk(&self, disk: Disk) -> Result<Arc<Medium>> {
        Ok(Arc::new(Medium::create(Path::new(""), disk)?))
    }

    /// A guest makes itself known, so that what its tests ask for finds it.
    pub(crate) fn register(&self, guest: &Arc<Guest>) {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|known| known.strong_count() > 0);
        guests.push(Arc::downgrade(guest));
    }

    fn guests(&self) -> Vec<Arc<Guest>> {
        let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.iter().filter_map(Weak::upgrade).collect()
    }
}
