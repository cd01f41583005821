//! All objects of a kind as the API itself has them, page by page: what is read at once is in memory at once.

use std::fmt::Debug;
use std::ops::ControlFlow;

use kube::api::ListParams;
use kube::{Api, Error};
use serde::de::DeserializeOwned;

/// Objects per answer.
const PAGE: u32 = 200;

/// Looks at those that are selected, until one is enough. Returns what was found with it.
pub async fn each<K, Found>(
    api: &Api<K>,
    selected: ListParams,
    mut look: impl FnMut(K) -> ControlFlow<Found>,
) -> Result<Option<Found>, Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut page = selected.limit(PAGE);
    loop {
        let list = api.list(&page).await?;
        for object in list.items {
            if let ControlFlow::Break(found) = look(object) {
                return Ok(Some(found));
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(None),
        }
    }
}
