//! What every role that has a host needs: its configuration, its LVM, and to be alone with both.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use lvms_host::attention;
use lvms_host::desired::Desired;
use lvms_host::runner::{Linux, Options as HostOptions};
use lvms_host::volumes::{Volumes as Engine, Work};
use lvms_lvmd::Lvmd;
use lvms_node::configuration::{self, Configuration};
use lvms_node::host_volumes::HostVolumes;
use lvms_node::metrics::Metrics;

use crate::serving;

/// How the host is reached.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration: device classes, as TopoLVM's lvmd has them.
    #[arg(long, value_name = "FILE", default_value = configuration::DEFAULT)]
    config: PathBuf,
    /// lvm2's program on the host.
    #[arg(long, value_name = "FILE")]
    lvm_path: Option<PathBuf>,
    /// A changing LVM command that has not ended after this long counts as stuck, and holds its volume group up.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    command_deadline: u64,
    /// Serve TopoLVM's lvmd protocol at the configuration's socket-name: whoever can open that is root of the volume
    /// groups, and removes volumes whoever uses them. For programs that speak to lvmd and cannot do without.
    #[arg(long)]
    lvmd_protocol: bool,
    /// Where the lock and LVM's layered configuration are kept.
    #[arg(long, value_name = "DIRECTORY", default_value = "/run/lvms", hide = true)]
    runtime_directory: PathBuf,
}

/// A host that nobody else of us serves.
pub(crate) struct Host {
    pub(crate) volumes: Arc<HostVolumes>,
    _alone: File,
}

impl Arguments {
    /// Reads the configuration, which must be right, looks at the host, and follows both.
    pub(crate) fn open(&self) -> Result<Host> {
        self.open_with(Configuration::read(&self.config)?)
    }

    /// The same, though the configuration may be wrong: what was published before must be hidden in any case.
    pub(crate) fn open_in_any_case(&self) -> Result<Host> {
        self.open_with(Configuration::read_or_wait(&self.config))
    }

    fn open_with(&self, configuration: Arc<Configuration>) -> Result<Host> {
        let desired = configuration.desired();
        let mut options = options(&desired, self.lvm_path.as_deref(), &self.runtime_directory)?;
        options.change_limit = Duration::from_secs(self.command_deadline);
        let alone = be_alone(&self.runtime_directory)?;
        let linux = Arc::new(Linux::new(options).context("the host cannot be reached")?);
        let engine = Engine::open(linux, &desired.groups()).context("LVM does not answer")?;
        configuration.follow(self.config.clone())?;
        shield(&engine, &desired);
        let followed = Arc::clone(&configuration);
        attention::follow(&engine, move || followed.desired())?;
        Ok(Host { volumes: Arc::new(HostVolumes::new(engine, configuration)), _alone: alone })
    }

    /// Listens to those who speak lvmd's protocol, if that is wanted. The future serves them until we are told to end.
    pub(crate) fn lvmd(
        &self,
        host: &Host,
        metrics: &Arc<Metrics>,
    ) -> Result<impl Future<Output = Result<()>> + use<>> {
        let wanted = self.lvmd_protocol.then(|| Lvmd::listen(Arc::clone(&host.volumes), Arc::clone(metrics)));
        let lvmd = wanted.transpose()?;
        Ok(async {
            match lvmd {
                Some(lvmd) => lvmd.serve(serving::told_to_end()).await,
                None => Ok(()),
            }
        })
    }
}

/// So often it is told how far long works are.
const TELL: Duration = Duration::from_secs(30);

impl Host {
    /// What is done beside serving: new groups are shielded, and long works are told of.
    pub(crate) fn attend(&self) {
        tokio::spawn(Host::keep_shielded(Arc::clone(&self.volumes)));
        tokio::spawn(Host::tell_works(Arc::clone(&self.volumes)));
    }

    /// Tells how far long works are.
    async fn tell_works(volumes: Arc<HostVolumes>) {
        loop {
            tokio::time::sleep(TELL).await;
            for (path, Work { what, done, all }) in volumes.engine.works() {
                tracing::info!(volume = %path, what, %done, %all, "long work goes on");
            }
        }
    }

    /// Keeps the host from looking into volumes of groups that a new configuration adds.
    async fn keep_shielded(volumes: Arc<HostVolumes>) {
        let mut changes = volumes.configuration.watch();
        while changes.changed().await.is_ok() {
            let (engine, desired) = (Arc::clone(&volumes.engine), Arc::clone(&changes.borrow_and_update()));
            let _ = tokio::task::spawn_blocking(move || shield(&engine, &desired)).await;
        }
    }
}

/// lvm2's way to the host, as configuration and arguments say.
pub(crate) fn options(desired: &Desired, lvm_path: Option<&Path>, runtime: &Path) -> Result<HostOptions> {
    let mut options = HostOptions { runtime: runtime.to_owned(), ..HostOptions::default() };
    match (lvm_path, &desired.lvm_command_prefix) {
        (Some(_), Some(_)) => bail!("--lvm-path and lvm-command-prefix exclude each other: keep one of them"),
        (Some(path), None) => path.clone_into(&mut options.lvm),
        (None, Some(prefix)) => options.lvm_command_prefix = Some(prefix.clone()),
        (None, None) => {}
    }
    Ok(options)
}

fn shield(engine: &Engine<Linux>, desired: &Desired) {
    if let Err(error) = engine.runner().shield(&desired.groups()) {
        tracing::warn!(%error, "the host cannot be kept from looking into volumes");
    }
}

/// So long a former process may take to end: a pod that was deleted by force ends after its successor has begun.
const FORMER: Duration = Duration::from_secs(20);

/// One process changes the volume groups of a host.
fn be_alone(runtime: &Path) -> Result<File> {
    fs::create_dir_all(runtime).with_context(|| runtime.display().to_string())?;
    // Whoever can open a lock can hold it.
    fs::set_permissions(runtime, Permissions::from_mode(0o700))
        .with_context(|| runtime.display().to_string())?;
    let path = runtime.join("lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path)?;
    let began = Instant::now();
    while lock.try_lock().is_err() {
        if began.elapsed() < FORMER {
            std::thread::sleep(Duration::from_millis(200));
            continue;
        }
        bail!("another lvms serves this host (it holds {}): end it first", path.display());
    }
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lvms_host::desired::lvmd;

    fn reached(text: &str, lvm_path: Option<&str>) -> Result<(PathBuf, Option<Vec<String>>)> {
        let text = format!("{text}\ndevice-classes: [{{name: a, volume-group: vg}}]");
        let Ok(read) = lvmd::read(&text) else { bail!("the file is wrong") };
        let options = options(&read.desired, lvm_path.map(Path::new), Path::new("/run/lvms"))?;
        Ok((options.lvm, options.lvm_command_prefix))
    }

    #[test]
    fn lvm2_is_reached_by_a_path_or_by_words_and_not_by_both() {
        let words = "lvm-command-prefix: [/usr/bin/nsenter, -t1, -m, /sbin/lvm]";
        let lvm = || PathBuf::from("lvm");
        let expected = ["/usr/bin/nsenter", "-t1", "-m", "/sbin/lvm"].map(str::to_owned).to_vec();
        assert_eq!(reached("", None).unwrap(), (lvm(), None));
        assert_eq!(reached("", Some("/sbin/lvm")).unwrap(), ("/sbin/lvm".into(), None));
        assert_eq!(reached(words, None).unwrap(), (lvm(), Some(expected)));
        assert_eq!(reached("lvm-command-prefix: []", Some("/sbin/lvm")).unwrap(), ("/sbin/lvm".into(), None));
        let refused = reached(words, Some("/sbin/lvm")).unwrap_err().to_string();
        assert!(refused.contains("--lvm-path") && refused.contains("lvm-command-prefix"), "{refused}");
        assert!(reached("lvm-command-prefix: {a: b}", None).is_err(), "it is no list");
    }
}
