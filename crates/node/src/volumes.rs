//! LogicalVolume objects of this node become LVs: each object is looked at when it, or what is on the host, changes.

mod decide;
mod long_works;
mod progress;
mod sight;
mod taken;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::{Api, Client};
use lvms_api::logical_volume::{REMOVAL_FAILED, Status};
use lvms_api::names::{CLAIM, CREATED_BY, NODE, UNUSED};
use lvms_api::{LogicalVolume, Personality};
use lvms_cluster::store::chain;
use lvms_cluster::work::Patience;
use lvms_cluster::write::{self, is_not_found, passes};
use lvms_cluster::{Events, Outcome, Reference, Store, Work};
use lvms_csi::locks::Locks;
use lvms_csi::volumes::Source;
use lvms_csi::{Error, Kind};
use lvms_host::names::VolumePath;
use lvms_host::publish::PublishError;
use lvms_host::runner::Linux;
use lvms_host::volumes::Volumes as Engine;
use serde_json::{Value, json};

use self::decide::{Act, Lv, Making, decide, is_for_block, is_for_filesystem, is_tried_again};
pub use self::long_works::LongWorks;
use self::sight::is_told;
use crate::host_volumes::{HostVolumes, New, Present, copied_from};
use crate::known::{find_any, left_for};

/// An LV that is in use, or a disk that is gone: looked at again after a second, and later at the most after this.
const PATIENCE: Patience = Patience { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// So many objects are worked on at once; LVM itself does one change per volume group.
const AT_ONCE: usize = 16;

/// Whoever finds so many at long works comes again after this.
const COMES_AGAIN: Duration = Duration::from_millis(500);

/// How long a publication of the same volume is waited for.
const TURN: Duration = Duration::from_secs(60);

/// What makes LVs of LogicalVolumes.
pub struct Volumes {
    /// For which driver.
    pub personality: Personality,
    /// This node.
    pub node: String,
    /// The cluster.
    pub client: Client,
    /// The LogicalVolumes of this node.
    pub objects: Arc<Store<LogicalVolume>>,
    /// What people are told.
    pub events: Events,
    /// The host.
    pub host: Arc<HostVolumes>,
    /// Shared with who publishes.
    pub locks: Arc<Locks>,
    /// Places for what can take long.
    pub long: LongWorks,
}

/// Why an object was not done with.
enum Failure {
    /// The cluster has not done what was asked.
    Cluster(kube::Error),
    /// The host has not.
    Host(Error),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Failure {
        Failure::Cluster(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Host(error)
    }
}

impl Volumes {
    /// The names that have to be looked at, told by the objects themselves and by what happens on the host.
    pub fn work(self: &Arc<Self>) -> Arc<Work<String>> {
        let work = Work::new("logicalvolume", PATIENCE);
        let (told, node) = (Arc::clone(&work), self.node.clone());
        let (events, personality) = (self.events.clone(), self.personality);
        self.objects.listen(move |before, now| {
            if let (Some(before), Some(now)) = (before, now)
                && let Some(kept) = decide::lowered(before, now)
            {
                events.warn(Reference::to(now.as_ref(), &personality), "SizeKept", kept);
            }
            if let Some(object) = now.or(before)
                && object.spec.node_name == node
            {
                told.add(object.name().to_owned());
            }
        });
        // Somebody else in this process may have read them already.
        for object in self.objects.filter(|object| object.spec.node_name == self.node) {
            work.add(object.name().to_owned());
        }
        work
    }

    /// Looks at them for ever.
    pub async fn run(self: Arc<Self>, work: Arc<Work<String>>) {
        self.objects.complete().await;
        let host = self.clone().follow_host(Arc::clone(&work));
        let progress = self.clone().tell_progress();
        let looks = work.run(AT_ONCE, move |name| {
            let volumes = Arc::clone(&self);
            async move { volumes.look(&name).await }
        });
        tokio::join!(looks, host, progress);
    }

    /// Somebody may have removed or grown an LV, or a volume group may be back.
    async fn follow_host(self: Arc<Self>, work: Arc<Work<String>>) {
        let mut changes = self.host.engine.watch();
        let mut configuration = self.host.configuration.watch();
        let mut hidden = self.host.hidden.subscribe();
        loop {
            let changed = tokio::select! {
                changed = changes.changed() => changed,
                changed = configuration.changed() => changed,
                // What is missed is tried again later.
                hidden = hidden.recv() => {
                    let is_hidden = |object: &LogicalVolume| hidden.as_deref().is_ok_and(|id| object.lv() == id);
                    for object in self.objects.filter(|object| object.is_deleted() && is_hidden(object)) {
                        work.add(object.name().to_owned());
                    }
                    continue;
                }
            };
            if changed.is_err() {
                return std::future::pending().await;
            }
            changes.mark_unchanged();
            for object in self.objects.filter(|object| object.spec.node_name == self.node) {
                if !is_as_told(&object, &self.lv(&object)) {
                    work.add(object.name().to_owned());
                }
            }
        }
    }

    async fn look(self: &Arc<Self>, name: &str) -> Outcome {
        let Some(object) = self.objects.named(name) else { return Outcome::Done };
        if object.spec.node_name != self.node {
            return Outcome::Done;
        }
        match self.act(&object).await {
            Ok(outcome) => outcome,
            Err(Failure::Cluster(error)) => passes(&error).unwrap_or_else(|| {
                self.tell_of_refusal(&object, &error);
                Outcome::Failed
            }),
            Err(Failure::Host(error)) => self.fail(&object, error).await,
        }
    }

    async fn act(self: &Arc<Self>, object: &LogicalVolume) -> Result<Outcome, Failure> {
        let mut lv = self.lv(object);
        if lv == Lv::Absent && (is_told(object) || object.is_deleted()) {
            lv = self.second_look(object).await;
        }
        let act = decide(object, self.personality, &lv);
        tracing::debug!(volume = object.name(), ?lv, ?act, "looked at");
        let long_in = if act.may_be_long(object) { self.group_of(object) } else { None };
        let place = long_in.map(|group| self.long.try_take(&group).ok_or(()));
        let Ok(_place) = place.transpose() else { return Ok(Outcome::After(COMES_AGAIN)) };
        match act {
            Act::Nothing => Ok(Outcome::Done),
            Act::Mark => {
                let mut change = write::finalizers_with(object, &self.personality.volume_finalizer());
                change["metadata"]["labels"] = json!({ CREATED_BY.0: CREATED_BY.1 });
                change["metadata"]["annotations"] = json!({ NODE: self.node });
                self.objects.answered(write::change(&self.api(), object, change).await?);
                Ok(Outcome::Done)
            }
            Act::Make(making) => {
                let present = self.make(object, making).await?;
                tracing::info!(volume = object.name(), claim = object.annotation(CLAIM), lv = %present.path, "made");
                self.tell(object, &decide::well(object.uid(), present.volume.size)).await?;
                Ok(Outcome::Done)
            }
            Act::Grow(size) => {
                let id = object.lv().to_owned();
                let (host, grown) = (Arc::clone(&self.host), id.clone());
                let size =
                    self.alone(&id, async move { host.enlarge(&grown, size, None, None).await }).await?;
                tracing::info!(
                    volume = object.name(),
                    claim = object.annotation(CLAIM),
                    size = size.0,
                    "grown"
                );
                self.tell(object, &decide::well(&id, size)).await?;
                Ok(Outcome::Done)
            }
            Act::KeepBytes => {
                let id = object.lv().to_owned();
                let (host, kept) = (Arc::clone(&self.host), id.clone());
                self.alone(&id, async move { host.keep_bytes(&kept, None).await }).await?;
                tracing::warn!(
                    volume = object.name(),
                    claim = object.annotation(CLAIM),
                    lv = id,
                    "others have given it to its user before all of it was zeroed: what is on it stays"
                );
                Ok(Outcome::Done)
            }
            Act::Adopt(status) => {
                if !self.is_as_made(object).await? {
                    let problem = format!(
                        "its logical volume {} is there, but nobody heard that its making was finished, and something is \
                         on it that may be of a former volume: delete the claim, and it is made anew",
                        object.lv()
                    );
                    return Err(Error::new(Kind::Precondition, problem).into());
                }
                self.tell(object, &status).await?;
                Ok(Outcome::Done)
            }
            // Nobody had used it when its node was asked, without TopoLVM's knowledge.
            Act::Remove if object.is_unused() && !self.is_blank(object).await? => self.retain(object).await,
            Act::Remove => {
                let id = object.lv().to_owned();
                let snapshot = self.is_snapshot(&id);
                let (host, removed) = (Arc::clone(&self.host), id.clone());
                self.alone(&id, async move { host.remove(&removed, snapshot, None).await }).await?;
                tracing::info!(volume = object.name(), claim = object.annotation(CLAIM), lv = id, "removed");
                self.let_go(object).await
            }
            Act::LetGo => {
                let id = object.lv().to_owned();
                if left_for(&self.host.engine.inventory(), &id).is_some() {
                    let (host, removed) = (Arc::clone(&self.host), id.clone());
                    self.alone(&id, async move { host.remove(&removed, false, None).await }).await?;
                }
                self.let_go(object).await
            }
            Act::Tell(status) => {
                if status.code == decide::LOST {
                    self.events.warn(self.about(object), "Lost", status.message.clone());
                }
                self.tell(object, &status).await?;
                Ok(Outcome::Done)
            }
            Act::Vouch => match self.is_blank(object).await {
                Ok(true) => {
                    let change = json!({ "metadata": { "annotations": { UNUSED: object.vouch() } } });
                    self.objects.answered(write::change(&self.api(), object, change).await?);
                    Ok(Outcome::Done)
                }
                Ok(false) => self.retain(object).await,
                // Nobody has asked for anything: it is nothing for the status.
                Err(Failure::Host(error)) => {
                    let told = format!("whether anybody has used it is not known: {}", error.message);
                    self.events.warn(self.about(object), "Retained", told);
                    Ok(Outcome::Failed)
                }
                Err(error) => Err(error),
            },
            Act::Retain => self.retain(object).await,
            Act::LeaveTo(why) => {
                self.events.warn(self.about(object), "NodeChanged", why);
                Ok(Outcome::Done)
            }
            Act::Refuse(error) => Err(error.into()),
            Act::Later(why) => {
                self.events.warn(self.about(object), "VolumeGroupMissing", why);
                Ok(Outcome::Failed)
            }
        }
    }

    /// Whether an LV of ours without a filesystem of ours has nothing else on it: a predecessor may have used it.
    async fn is_blank(&self, object: &LogicalVolume) -> Result<bool, Failure> {
        self.judge(object, Engine::is_blank).await
    }

    async fn is_as_made(&self, object: &LogicalVolume) -> Result<bool, Failure> {
        self.judge(object, Engine::is_as_made).await
    }

    async fn judge(
        &self,
        object: &LogicalVolume,
        judge: fn(&Arc<Engine<Linux>>, &VolumePath) -> Result<bool, PublishError>,
    ) -> Result<bool, Failure> {
        let id = object.lv().to_owned();
        let (host, probed) = (Arc::clone(&self.host), id.clone());
        let probe = async move {
            host.blocking(move |engine, desired| {
                let inventory = engine.inventory();
                let Some(found) = find_any(desired, &inventory, &probed) else { return Ok(false) };
                judge(engine, &found.path).map_err(|error| crate::status::of_publish(&error))
            })
            .await
        };
        self.alone(&id, probe).await
    }

    /// Tells that what nobody names is kept.
    async fn retain(&self, object: &LogicalVolume) -> Result<Outcome, Failure> {
        let named = if object.is_snapshot() {
            "no VolumeSnapshotContent names it any more".to_owned()
        } else {
            let claim = object.annotation(CLAIM).map(|claim| format!(" {claim}")).unwrap_or_default();
            format!("neither its claim{claim} nor a PersistentVolume names it any more, and it may have data")
        };
        let until = if object.is_deleted() {
            format!("the annotation {UNUSED} is taken away")
        } else {
            "this object is deleted".to_owned()
        };
        self.events.warn(self.about(object), "Retained", format!("{named}: its data is kept until {until}"));
        // Of what goes it says why: without it, it would be removed.
        if object.annotation(UNUSED).is_some() && !object.is_deleted() {
            let change = json!({ "metadata": { "annotations": { UNUSED: null } } });
            self.objects.answered(write::change(&self.api(), object, change).await?);
        }
        Ok(Outcome::Done)
    }

    /// What went wrong on the host is told where whoever wanted it looks.
    async fn fail(&self, object: &LogicalVolume, error: Error) -> Outcome {
        self.events.warn(self.about(object), wanted(object), error.message.clone());
        if is_tried_again(error.kind, object) {
            return Outcome::Failed;
        }
        let now = self.objects.named(object.name()).filter(|now| now.uid() == object.uid());
        if now.is_some_and(|now| now.spec != object.spec) {
            // What was refused is not wanted any more.
            return Outcome::Failed;
        }
        let before = object.status.clone().unwrap_or_default();
        let about = if object.is_deleted() { REMOVAL_FAILED } else { "" };
        let message = format!("{about}{}", error.message);
        let status = Status { code: error.kind.number(), message, ..before.clone() };
        if status != before
            && let Err(error) = self.tell(object, &status).await
            && !is_not_found(&error)
        {
            self.tell_of_refusal(object, &error);
        }
        Outcome::Failed
    }

    /// What the API does not take cannot be told in the status.
    fn tell_of_refusal(&self, object: &LogicalVolume, error: &kube::Error) {
        let told = format!("the API did not take what this node has to say: {}", chain(error));
        self.events.warn(self.about(object), wanted(object), told);
    }

    async fn make(&self, object: &LogicalVolume, making: Making) -> Result<Present, Failure> {
        let (id, name) = (object.uid().to_owned(), object.name().to_owned());
        let (host, locked) = (Arc::clone(&self.host), id.clone());
        let (size, source) = match making {
            Making::Snapshot(source) => {
                let source = self.source(&source).await?;
                let (Source::Volume(source) | Source::Snapshot(source)) = source;
                let take = async move { host.take_snapshot(id, name, source, None).await };
                return self.alone(&locked, take).await;
            }
            Making::Volume(size) => (size, None),
            Making::Copy(size, source) => {
                let source = match self.copied_from(&id) {
                    Some(copied) => copied,
                    None => self.source(&source).await?,
                };
                (size, Some(("spec.source".to_owned(), source)))
            }
        };
        let new = New {
            id,
            name,
            claim: object.annotation(CLAIM).map(str::to_owned),
            class: object.spec.device_class.clone(),
            options: object.spec.lvcreate_option_class.clone(),
            size,
            limit: None,
            block: is_for_block(object),
            filesystem: is_for_filesystem(object),
            kind: String::new(),
            source,
        };
        self.alone(&locked, async move { host.make(new, None).await }).await
    }

    /// What an LV was copied from, whose LogicalVolume may be gone since.
    fn copied_from(&self, id: &str) -> Option<Source> {
        let (inventory, desired) = (self.host.engine.inventory(), self.host.configuration.desired());
        find_any(&desired, &inventory, id).as_ref().and_then(copied_from)
    }

    /// The LV of the LogicalVolume with this name.
    async fn source(&self, name: &str) -> Result<Source, Failure> {
        let object = match self.objects.named(name) {
            Some(object) => Some(object),
            None => self.api().get_opt(name).await?.map(Arc::new),
        };
        let invalid = |kind, problem: String| Error::new(kind, format!("spec.source: {problem}"));
        let object =
            object.ok_or_else(|| invalid(Kind::NotFound, format!("there is no LogicalVolume {name:?}")))?;
        if object.spec.node_name != self.node {
            let problem =
                format!("{name} is on node {}: a copy is made where its source is", object.spec.node_name);
            return Err(invalid(Kind::Precondition, problem).into());
        }
        let id = object
            .volume_id()
            .ok_or_else(|| invalid(Kind::Precondition, format!("{name} has no logical volume yet")))?;
        Ok(if self.is_snapshot(id) { Source::Snapshot(id.to_owned()) } else { Source::Volume(id.to_owned()) })
    }

    /// Does something to an LV while nobody else does, to its end.
    async fn alone<T: Send + 'static>(
        &self,
        id: &str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Failure> {
        let held = self.locks.hold(id, Instant::now() + TURN).await?;
        Ok(held.to_the_end(work).await?)
    }

    fn is_snapshot(&self, id: &str) -> bool {
        let (inventory, desired) = (self.host.engine.inventory(), self.host.configuration.desired());
        find_any(&desired, &inventory, id).is_some_and(|found| found.facts.snapshot)
    }

    async fn let_go(&self, object: &LogicalVolume) -> Result<Outcome, Failure> {
        let change = write::finalizers_without(object, &[&self.personality.volume_finalizer()]);
        write::change(&self.api(), object, change).await?;
        Ok(Outcome::Done)
    }

    /// Writes the status of this very object: another one may have its name by now.
    async fn tell(&self, object: &LogicalVolume, status: &Status) -> Result<(), kube::Error> {
        let text = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
        let status = json!({
            "volumeID": text(&status.volume_id),
            "currentSize": status.current_size,
            "code": if status.code == 0 { Value::Null } else { json!(status.code) },
            "message": text(&status.message),
        });
        let now = self.objects.named(object.name()).filter(|now| now.uid() == object.uid());
        let version =
            now.map_or(object.metadata.resource_version.clone(), |now| now.metadata.resource_version.clone());
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        self.objects.answered(write::merge_status(&self.api(), object.name(), patch).await?);
        Ok(())
    }

    fn api(&self) -> Api<LogicalVolume> {
        Api::all_with(self.client.clone(), &self.personality)
    }

    fn about(&self, object: &LogicalVolume) -> Reference {
        Reference::to(object, &self.personality)
    }
}

/// What was wanted and failed, as the reason of an event.
fn wanted(object: &LogicalVolume) -> &'static str {
    if object.is_deleted() {
        "RemovalFailed"
    } else if object.volume_id().is_some() {
        "ExpansionFailed"
    } else {
        "CreationFailed"
    }
}

/// Whether an LV is as its LogicalVolume says.
fn is_as_told(object: &LogicalVolume, lv: &Lv) -> bool {
    let told = object.status.as_ref().and_then(|status| status.current_size.as_ref()?.bytes().ok());
    match lv {
        Lv::Present { size, finished, .. } => {
            object.volume_id().is_some() && *finished && told == Some(size.0)
        }
        Lv::Absent => {
            let lost = object.status.as_ref().is_some_and(|status| status.code == decide::LOST);
            object.volume_id().is_none() || lost
        }
        Lv::Taken { .. } | Lv::Unknown(_) => false,
    }
}
