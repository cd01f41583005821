//! TopoLVM's controller and its sidecars must not act beside us. Each of them acts only while it holds a lease of its
//! own: before the first write all of those are ours, and they stay ours as long as we act.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use lvms_api::Personality;
use lvms_cluster::lease::{Candidate, Timing};
use lvms_cluster::store::chain;
use lvms_cluster::{Events, Reference};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Whose the leases are then. All of our replicas use the same name: which of them leads is decided before.
const IDENTITY: &str = "lvms";

/// Nobody is in a hurry to have them back. Yet client-go before 2023 does not read how long a lease lasts: a predecessor of
/// that time takes one that it has not seen to change for fifteen seconds, so by then it is renewed or given up.
const TIMING: Timing = Timing {
    duration: Duration::from_secs(60),
    renew_deadline: Duration::from_secs(10),
    renew: Duration::from_secs(5),
    retry: Duration::from_secs(2),
};

/// Whether a predecessor was installed beside us is looked at so often.
const AGAIN: Duration = Duration::from_secs(60);

/// Of TopoLVM's controller, whatever the driver is called.
const CONTROLLER: &str = "topolvm";

/// Who was here before.
pub struct Predecessor {
    /// Under which name.
    pub personality: Personality,
    /// The cluster.
    pub client: Client,
    /// What people are told.
    pub events: Events,
    /// Where it is, if that is known: elsewhere a lease of its name may be anybody's. Otherwise anywhere.
    pub namespaces: Vec<String>,
}

/// The leases of the sidecars: provisioner, resizer, snapshotter.
fn sidecars(personality: Personality) -> [String; 3] {
    let driver = personality.driver().replace('.', "-");
    [driver.clone(), format!("external-resizer-{driver}"), format!("external-snapshotter-leader-{driver}")]
}

/// Where a lease is and what it is called.
fn place(lease: &Lease) -> (String, String) {
    (lease.namespace().unwrap_or_default(), lease.name_any())
}

/// Who holds a lease, if it is not us.
fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref()?;
    Some(holder).filter(|holder| !holder.is_empty() && *holder != IDENTITY)
}

/// Those of this driver's installation: a controller's lease beside no sidecar's is that of another driver.
fn of_one_installation(sidecars: Vec<Lease>, controllers: Vec<Lease>) -> Vec<Lease> {
    let namespaces: Vec<String> = sidecars.iter().filter_map(ResourceExt::namespace).collect();
    sidecars.into_iter().chain(within(controllers, &namespaces)).collect()
}

/// Those in one of these namespaces.
fn within(leases: Vec<Lease>, namespaces: &[String]) -> impl Iterator<Item = Lease> {
    leases
        .into_iter()
        .filter(|lease| lease.namespace().is_some_and(|namespace| namespaces.contains(&namespace)))
}

impl Predecessor {
    /// Acts as soon as no predecessor can, and as long as none can. Ends when one could, or when the act has ended: it is
    /// begun again.
    pub async fn kept_out(&self, act: impl Future<Output = ()>) {
        let leases = self.find().await;
        self.tell_passed_over().await;
        let places: BTreeSet<_> = leases.iter().map(place).collect();
        let (held, mut ours) = watch::channel(0_usize);
        // Dropped, they are not renewed any more.
        let mut keeping = JoinSet::new();
        for lease in &leases {
            self.tell(lease);
            let (mut candidate, held) = (self.candidate(lease), held.clone());
            keeping.spawn(async move {
                let hold = || {
                    let counted = Counted::one_more(held.clone());
                    async move {
                        let _counted = counted;
                        std::future::pending::<()>().await;
                    }
                };
                candidate.lead(std::future::pending(), hold).await;
            });
        }
        // The sender lives as long as this does.
        tokio::select! {
            _ = ours.wait_for(|ours| *ours == places.len()) => {}
            () = self.changed(&places) => return,
        }
        if !places.is_empty() {
            tracing::info!(leases = ?places, "the predecessor's leases are ours: it cannot act");
        }
        tokio::select! {
            () = act => {}
            _ = ours.wait_for(|ours| *ours < places.len()) => {
                tracing::warn!("a lease of the predecessor is not ours any more: it could act, so we do not");
            }
            () = self.changed(&places) => {
                tracing::warn!("a predecessor was installed beside us, or has gone: its leases have to be ours first");
            }
        }
    }

    /// Lets a predecessor act again: it need not wait until our leases have run out.
    pub async fn let_in(&self) {
        let find = tokio::time::timeout(TIMING.retry, self.find());
        for lease in find.await.unwrap_or_default() {
            self.candidate(&lease).release().await;
        }
    }

    fn candidate(&self, lease: &Lease) -> Candidate {
        let (namespace, name) = place(lease);
        Candidate::new(self.client.clone(), &namespace, &name, IDENTITY, TIMING)
    }

    /// Says who holds a lease that we need.
    fn tell(&self, lease: &Lease) {
        let Some(holder) = holder(lease) else { return };
        let told = format!(
            "lvms waits until {holder} does not renew this lease any more: scale the Deployment of TopoLVM's controller \
             to 0"
        );
        tracing::warn!(lease = ?place(lease), holder, "waits for the predecessor to end");
        self.events.warn(Reference::to(lease, &()), "WaitsForPredecessor", told);
    }

    /// Says who holds a lease of a predecessor's name elsewhere: if the namespace was mistaken, he acts beside us.
    async fn tell_passed_over(&self) {
        if self.namespaces.is_empty() {
            return;
        }
        for name in sidecars(self.personality) {
            for lease in self.everywhere(&name).await.unwrap_or_default() {
                let elsewhere =
                    lease.namespace().is_some_and(|namespace| !self.namespaces.contains(&namespace));
                if let Some(holder) = holder(&lease).filter(|_| elsewhere) {
                    tracing::warn!(
                        lease = ?place(&lease), holder, namespaces = ?self.namespaces,
                        "is not waited for: it is in none of the namespaces in which the predecessor was"
                    );
                }
            }
        }
    }

    /// Waits until there are other leases than these: one more, or one less, for which nobody has to wait any more.
    async fn changed(&self, known: &BTreeSet<(String, String)>) {
        loop {
            tokio::time::sleep(AGAIN).await;
            let now: BTreeSet<_> = self.find().await.iter().map(place).collect();
            if now != *known {
                return;
            }
        }
    }

    /// All leases of a predecessor. Without an answer nothing is assumed: it is asked again.
    async fn find(&self) -> Vec<Lease> {
        loop {
            match self.list().await {
                Ok(leases) => return leases,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "whether a predecessor acts is not known");
                    tokio::time::sleep(TIMING.retry).await;
                }
            }
        }
    }

    async fn list(&self) -> Result<Vec<Lease>, kube::Error> {
        let mut beside = Vec::new();
        for name in sidecars(self.personality) {
            beside.extend(self.named(&name).await?);
        }
        let controllers = if beside.is_empty() { Vec::new() } else { self.named(CONTROLLER).await? };
        Ok(of_one_installation(beside, controllers))
    }

    async fn everywhere(&self, name: &str) -> Result<Vec<Lease>, kube::Error> {
        let parameters = ListParams::default().fields(&format!("metadata.name={name}"));
        Ok(Api::<Lease>::all(self.client.clone()).list(&parameters).await?.items)
    }

    /// Those of this name, wherever the predecessor may be.
    async fn named(&self, name: &str) -> Result<Vec<Lease>, kube::Error> {
        let leases = self.everywhere(name).await?;
        if self.namespaces.is_empty() {
            return Ok(leases);
        }
        Ok(within(leases, &self.namespaces).collect())
    }
}

/// One of the leases that are ours.
struct Counted(watch::Sender<usize>);

impl Counted {
    fn one_more(held: watch::Sender<usize>) -> Counted {
        held.send_modify(|ours| *ours += 1);
        Counted(held)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|ours| *ours -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use tokio::time::Instant;

    #[test]
    fn sidecars_write_a_dash_where_the_driver_has_a_dot() {
        let names = sidecars(Personality::Topolvm);
        assert_eq!(
            names,
            ["topolvm-io", "external-resizer-topolvm-io", "external-snapshotter-leader-topolvm-io"]
        );
        assert_eq!(sidecars(Personality::Legacy)[0], "topolvm-cybozu-com");
    }

    fn lease(namespace: &str, name: &str) -> Lease {
        let json = serde_json::json!({"metadata": {"namespace": namespace, "name": name}});
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_lease_elsewhere_holds_nobody_up() {
        let leases = vec![lease("tenant", "topolvm-io"), lease("ours", "topolvm-io")];
        let found: Vec<_> =
            within(leases, &["ours".to_owned(), "more".to_owned()]).map(|lease| place(&lease)).collect();
        assert_eq!(found, [("ours".to_owned(), "topolvm-io".to_owned())]);
    }

    #[test]
    fn the_controller_of_another_driver_is_not_waited_for() {
        let sidecars = vec![lease("ours", "topolvm-io")];
        let controllers = vec![lease("ours", "topolvm"), lease("others", "topolvm")];
        let found: Vec<_> = of_one_installation(sidecars, controllers).iter().map(place).collect();
        let expected = [("ours", "topolvm-io"), ("ours", "topolvm")];
        assert_eq!(found, expected.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())));
    }

    /// What client-go takes a lease after, whatever that says of itself, if it is older than 2023.
    const OLD_CLIENT: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_predecessor_that_goes_by_its_own_fifteen_seconds_sees_each_lease_renewed() {
        let renewed = Arc::new(Mutex::new(Vec::new()));
        let (noted, puts) = (Arc::clone(&renewed), AtomicUsize::new(0));
        let (context, _) = scripted::context(move |request| {
            let held = json!({
                "metadata": {"namespace": "ours", "name": "topolvm", "resourceVersion": "1"},
                "spec": {"holderIdentity": IDENTITY, "leaseDurationSeconds": 60},
            });
            // One renewal in three fails.
            if request.starts_with("PUT") {
                if puts.fetch_add(1, Ordering::SeqCst) % 3 == 2 {
                    return (500, json!({"code": 500, "message": "not now"}));
                }
                noted.lock().unwrap().push(Instant::now());
            }
            (200, held)
        })
        .await;
        let mut candidate = Candidate::new(context.client.clone(), "ours", "topolvm", IDENTITY, TIMING);
        let stop = tokio::time::sleep(Duration::from_secs(120));
        assert!(candidate.lead(stop, std::future::pending).await, "the lease is lost");
        let renewed = renewed.lock().unwrap();
        let gaps = renewed.windows(2).map(|two| two[1] - two[0]);
        let longest = gaps.max().unwrap_or(OLD_CLIENT);
        // What fails is tried again before it would be due.
        assert!(TIMING.renew < longest && longest < 2 * TIMING.renew, "{longest:?}");
        assert!(TIMING.renew_deadline < OLD_CLIENT);
    }
}
