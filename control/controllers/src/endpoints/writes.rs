//! Executes the writes that reconcile slices.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
};

use super::slices::Plan;
use crate::runtime::{During as _, Error, Key, bounded_join, error, same_object};

/// What is being done, for errors: a creation, an update, a deletion.
pub(super) type Actions = [&'static str; 3];

/// Creates, updates and deletes slices. `wrote` hears of each that was, with the slice as it is now where there is one.
pub(super) async fn write_slices(
    client: &Client,
    key: &Key,
    plan: &Plan,
    [create, update, delete]: Actions,
    wrote: &(impl Fn(&str, Option<&EndpointSlice>) + Sync),
) -> Result<(), Error> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &key.namespace);
    let (api, params) = (&api, &PostParams::default());
    let creates = plan.create.iter().map(|slice| async move {
        api.create(params, slice).await.map(|slice| wrote("create", Some(&slice))).during(create, key)
    });
    bounded_join(creates).await.into_iter().collect::<Result<(), _>>()?;
    let updates = plan.update.iter().map(|slice| async move {
        let replaced = api.replace(&slice.name_any(), params, slice).await;
        replaced.map(|slice| wrote("update", Some(&slice))).during(update, key)
    });
    bounded_join(updates).await.into_iter().collect::<Result<(), _>>()?;
    let deletes = plan.delete.iter().map(|slice| async move {
        let params = DeleteParams::default().preconditions(same_object(&slice.metadata));
        let deleted = error::ignore_deleted(api.delete(&slice.name_any(), &params).await);
        deleted.during(delete, key).map(|_| wrote("delete", None))
    });
    bounded_join(deletes).await.into_iter().collect()
}
