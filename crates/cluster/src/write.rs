//! Creating, changing and deleting, guarded against what others did meanwhile: the one place from which the cluster is
//! changed.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Error, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::crash;
use crate::work::Outcome;

/// Whether something was made now.
#[derive(Debug)]
pub enum Created<K> {
    /// It was, and is so.
    Now(K),
    /// Something of that name is there.
    AlreadyThere,
}

fn code(error: &Error) -> Option<u16> {
    if let Error::Api(status) = error { Some(status.code) } else { None }
}

/// Whether there is no such object.
pub fn is_not_found(error: &Error) -> bool {
    code(error) == Some(404)
}

/// Whether the API knows no such kind: its definition is gone. Of an object that is missing it says the name.
fn is_unknown_kind(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_none_or(|details| details.name.is_empty())
}

/// Whether somebody else was quicker.
pub fn is_conflict(error: &Error) -> bool {
    code(error) == Some(409)
}

/// Whether there is an object of that name. A quota that two take from at once is a conflict, too.
fn is_already_there(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Whether the API refuses what was asked, and will go on to.
pub fn is_invalid(error: &Error) -> bool {
    matches!(code(error), Some(400 | 422))
}

/// Whether nobody has answered, or whoever did was not able to. A webhook that fails is not the API's own trouble: it may
/// be nobody's for long.
fn is_unreachable(error: &Error) -> bool {
    let is_webhook = matches!(error, Error::Api(status) if status.message.contains("webhook"));
    match code(error) {
        Some(code) => code == 429 || code > 500 || code == 500 && !is_webhook,
        None => !matches!(error, Error::SerdeError(_) | Error::BuildRequest(_)),
    }
}

/// When to look again after a failure that passes by itself: somebody else was quicker, or the API is away. It must not
/// be long: when the API is back, all that waits for it goes on. `None` for all other failures, among them that a
/// definition is missing: somebody has to bring it back.
pub fn passes(error: &Error) -> Option<Outcome> {
    if is_conflict(error) || (is_not_found(error) && !is_unknown_kind(error)) {
        return Some(Outcome::After(Duration::from_secs(1)));
    }
    is_unreachable(error).then_some(Outcome::After(Duration::from_secs(3)))
}

/// What is written, by whom: every write of ours is one of these.
struct Write {
    verb: &'static str,
    kind: String,
    site: &'static Location<'static>,
}

impl Write {
    #[track_caller]
    fn new<K: Resource>(verb: &'static str, api: &Api<K>) -> Write {
        let kind = api.resource_url().rsplit('/').next().unwrap_or_default().to_owned();
        Write { verb, kind, site: Location::caller() }
    }

    /// Lets it happen.
    async fn send<T>(self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let _turn: crash::Turn = crash::turn().await;
        crash::point("before", self.verb, &self.kind, self.site);
        let answer = request.await;
        crash::point("after", self.verb, &self.kind, self.site);
        answer
    }
}

/// Makes an object from all that it shall have.
#[track_caller]
pub fn create<K>(api: &Api<K>, object: &Value) -> impl Future<Output = Result<Created<K>, Error>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let write = Write::new("create", api);
    async move {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = kube::core::Request::new(api.resource_url())
            .create(&PostParams::default(), body)
            .map_err(Error::BuildRequest)?;
        match write.send(api.clone().into_client().request(request)).await {
            Ok(created) => Ok(Created::Now(created)),
            Err(error) if is_already_there(&error) => Ok(Created::AlreadyThere),
            Err(error) => Err(error),
        }
    }
}

/// Deletes an object, if it is still the one that is meant. One that is gone is deleted already. Returns what stays of
/// it until its finalizers are gone.
#[track_caller]
pub fn delete<K>(api: &Api<K>, name: &str, uid: &str) -> impl Future<Output = Result<Option<K>, Error>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let write = Write::new("delete", api);
    async move {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match write.send(api.delete(name, &parameters)).await {
            Ok(answer) => Ok(answer.left().filter(|object| object.meta().deletion_timestamp.is_some())),
            // Gone, or another one by now.
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Changes an object if it is still as it was seen. Fails with a conflict if it is not.
#[track_caller]
pub fn change<K>(api: &Api<K>, seen: &K, change: Value) -> impl Future<Output = Result<K, Error>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let name = seen.meta().name.clone().unwrap_or_default();
    merge_as(Write::new("change", api), api, name, guarded(seen, change))
}

/// Changes an object, whatever it is by now; a change that names a version or a uid fails if it is another.
#[track_caller]
pub fn merge<K>(api: &Api<K>, name: &str, change: Value) -> impl Future<Output = Result<K, Error>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    merge_as(Write::new("merge", api), api, name.to_owned(), change)
}

async fn merge_as<K>(write: Write, api: &Api<K>, name: String, change: Value) -> Result<K, Error>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    write.send(api.patch(&name, &PatchParams::default(), &Patch::Merge(change))).await
}

/// Changes the status of an object, whatever it is by now; a change that names a version or a uid fails if it is another.
#[track_caller]
pub fn merge_status<K>(api: &Api<K>, name: &str, change: Value) -> impl Future<Output = Result<K, Error>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let write = Write::new("merge-status", api);
    async move { write.send(api.patch_status(name, &PatchParams::default(), &Patch::Merge(change))).await }
}

/// Puts an object in the place of the version that it was made from.
#[track_caller]
pub fn replace<K>(api: &Api<K>, name: &str, object: &K) -> impl Future<Output = Result<K, Error>>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
{
    let write = Write::new("replace", api);
    async move { write.send(api.replace(name, &PostParams::default(), object)).await }
}

/// A change that holds for the version that was seen only.
fn guarded<K: Resource>(seen: &K, mut change: Value) -> Value {
    if let Some(version) = &seen.meta().resource_version {
        change["metadata"]["resourceVersion"] = json!(version);
    }
    change
}

/// The finalizers of an object without some.
pub fn finalizers_without<K: Resource>(object: &K, unwanted: &[&str]) -> Value {
    let left = object.meta().finalizers.iter().flatten();
    let left: Vec<&String> = left.filter(|finalizer| !unwanted.contains(&finalizer.as_str())).collect();
    json!({ "metadata": { "finalizers": left } })
}

/// The finalizers of an object and one more.
pub fn finalizers_with<K: Resource>(object: &K, wanted: &str) -> Value {
    let mut all = object.meta().finalizers.clone().unwrap_or_default();
    if !all.iter().any(|finalizer| finalizer == wanted) {
        all.push(wanted.to_owned());
    }
    json!({ "metadata": { "finalizers": all } })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::slim::Node;

    fn node(json: Value) -> Node {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_passes_by_itself_is_looked_at_again_soon_and_the_rest_is_a_failure() {
        let said = |said: Value| passes(&Error::Api(Box::new(serde_json::from_value(said).unwrap())));
        let answered = |code: u16| said(json!({"code": code, "details": {"name": "x"}}));
        let seconds = |number| Some(Outcome::After(Duration::from_secs(number)));
        assert_eq!([answered(404), answered(409)], [seconds(1), seconds(1)]);
        assert_eq!([answered(429), answered(500), answered(503)], [seconds(3), seconds(3), seconds(3)]);
        assert_eq!([answered(400), answered(403), answered(422)], [None, None, None]);
        let webhook =
            "Internal error occurred: failed calling webhook \"policy.example\": connection refused";
        assert_eq!(said(json!({"code": 500, "reason": "InternalError", "message": webhook})), None);
        assert_eq!(passes(&Error::ReadEvents(std::io::Error::other("gone"))), seconds(3));
        // As it is told of a definition that is gone, by the API server and by one that is behind it.
        assert_eq!(said(json!({"code": 404, "message": "404 page not found"})), None);
        assert_eq!(said(json!({"code": 404, "reason": "NotFound", "details": {}})), None);
    }

    #[test]
    fn only_an_object_of_the_same_name_is_there_already() {
        let said = |reason: &str| {
            let said = json!({"code": 409, "reason": reason, "details": {"name": "x"}});
            is_already_there(&Error::Api(Box::new(serde_json::from_value(said).unwrap())))
        };
        assert!(said("AlreadyExists") && !said("Conflict"));
    }

    /// The code, without tests, of all that talks to a cluster, with its file.
    fn all_code(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                all_code(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text.split("#[cfg(test)]\nmod tests").next().unwrap().to_owned()));
            }
        }
    }

    #[test]
    fn the_cluster_is_changed_from_one_place_only() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut all = Vec::new();
        for entry in fs::read_dir(crates).unwrap() {
            all_code(&entry.unwrap().path().join("src"), &mut all);
        }
        // Every write of the client takes one of these, or is a request made by hand.
        let writes = ["PostParams", "PatchParams", "DeleteParams", "Request::new(", "into_client("];
        let (here, others): (Vec<_>, Vec<_>) =
            all.iter().partition(|(path, _)| path.ends_with("cluster/src/write.rs"));
        assert!(others.len() > 50, "only {} files were read", others.len());
        for write in writes {
            assert!(
                here.iter().any(|(_, code)| code.contains(write)),
                "the search for {write} finds nothing"
            );
            for (path, code) in &others {
                assert!(!code.contains(write), "{} has {write}", path.display());
            }
        }
    }

    #[test]
    fn a_change_names_the_version_that_was_seen() {
        let seen = node(json!({"metadata": {"name": "n", "resourceVersion": "7", "finalizers": ["a", "b"]}}));
        let change = guarded(&seen, finalizers_without(&seen, &["a"]));
        assert_eq!(change, json!({"metadata": {"resourceVersion": "7", "finalizers": ["b"]}}));
        assert_eq!(finalizers_with(&seen, "b"), json!({"metadata": {"finalizers": ["a", "b"]}}));
        assert_eq!(finalizers_with(&seen, "c"), json!({"metadata": {"finalizers": ["a", "b", "c"]}}));
    }
}
