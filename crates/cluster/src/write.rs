//! Creating, changing and deleting, guarded against what others did meanwhile.

use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Error, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

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

/// Whether somebody else was quicker.
pub fn is_conflict(error: &Error) -> bool {
    code(error) == Some(409)
}

/// Whether the API refuses what was asked, and will go on to.
pub fn is_invalid(error: &Error) -> bool {
    matches!(code(error), Some(400 | 422))
}

/// Whether nobody has answered, or whoever did was not able to.
fn is_unreachable(error: &Error) -> bool {
    match code(error) {
        Some(code) => code == 429 || code >= 500,
        None => !matches!(error, Error::SerdeError(_) | Error::BuildRequest(_)),
    }
}

/// When to look again after a failure that passes by itself: somebody else was quicker, or the API is away. It must not
/// be long: when the API is back, all that waits for it goes on. `None` for all other failures.
pub fn passes(error: &Error) -> Option<Outcome> {
    if is_conflict(error) || is_not_found(error) {
        return Some(Outcome::After(Duration::from_secs(1)));
    }
    is_unreachable(error).then_some(Outcome::After(Duration::from_secs(3)))
}

/// Makes an object from all that it shall have.
pub async fn create<K>(api: &Api<K>, object: &Value) -> Result<Created<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
    let request = kube::core::Request::new(api.resource_url())
        .create(&PostParams::default(), body)
        .map_err(Error::BuildRequest)?;
    match api.clone().into_client().request(request).await {
        Ok(created) => Ok(Created::Now(created)),
        Err(error) if is_conflict(&error) => Ok(Created::AlreadyThere),
        Err(error) => Err(error),
    }
}

/// Deletes an object, if it is still the one that is meant. One that is gone is deleted already. Returns what stays of
/// it until its finalizers are gone.
pub async fn delete<K>(api: &Api<K>, name: &str, uid: &str) -> Result<Option<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(name, &parameters).await {
        Ok(answer) => Ok(answer.left().filter(|object| object.meta().deletion_timestamp.is_some())),
        // Gone, or another one by now.
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Changes an object if it is still as it was seen. Fails with a conflict if it is not.
pub async fn change<K>(api: &Api<K>, seen: &K, change: Value) -> Result<K, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = seen.meta().name.clone().unwrap_or_default();
    api.patch(&name, &PatchParams::default(), &Patch::Merge(guarded(seen, change))).await
}

/// Changes the status of an object if the object is still as it was seen.
pub async fn change_status<K>(api: &Api<K>, seen: &K, status: Value) -> Result<K, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = seen.meta().name.clone().unwrap_or_default();
    let patch = Patch::Merge(guarded(seen, json!({ "status": status })));
    api.patch_status(&name, &PatchParams::default(), &patch).await
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
    use super::*;
    use crate::slim::Node;

    fn node(json: Value) -> Node {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn what_passes_by_itself_is_looked_at_again_soon_and_the_rest_is_a_failure() {
        let answered = |code: u16| {
            let status = kube::core::Status { code, ..kube::core::Status::default() };
            passes(&Error::Api(Box::new(status)))
        };
        let seconds = |number| Some(Outcome::After(Duration::from_secs(number)));
        assert_eq!([answered(404), answered(409)], [seconds(1), seconds(1)]);
        assert_eq!([answered(429), answered(500), answered(503)], [seconds(3), seconds(3), seconds(3)]);
        assert_eq!([answered(400), answered(403), answered(422)], [None, None, None]);
        assert_eq!(passes(&Error::ReadEvents(std::io::Error::other("gone"))), seconds(3));
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
