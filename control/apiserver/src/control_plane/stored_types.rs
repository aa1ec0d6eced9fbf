//! What the stored objects were last checked against, so that not every start decodes all of them.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
};

use windlass_identity::pki;

use super::Error;
use crate::{apiserver::Api, kinds};

/// The file with [`fingerprint`], next to the objects that it is about.
const FILE: &str = "checked-types";

/// Repairs the objects that clients cannot decode, if other types than those of this program wrote or checked them. What is
/// written since a check was checked by the write.
pub(super) async fn repair(api: &Api, store: &Path) -> Result<(), Error> {
    let (file, current) = (store.join(FILE), fingerprint(api));
    // One that cannot be read is no record of a check.
    if std::fs::read_to_string(&file).is_ok_and(|checked| checked == current) {
        return Ok(());
    }
    if api.repair().await {
        pki::write_private(&file, &current)?;
    }
    Ok(())
}

/// A hash of the stored resources and of their types.
fn fingerprint(api: &Api) -> String {
    let mut hasher = DefaultHasher::new();
    kinds::types::TABLES.hash(&mut hasher);
    // What is checked of custom objects, whose metadata is of a type in the tables.
    "metadata".hash(&mut hasher);
    let catalog = api.catalogs().current();
    for version in catalog.all().filter(|version| version.is_served_as_stored()) {
        version.gvk.hash(&mut hasher);
    }
    format!("{:016x}\n", hasher.finish())
}
