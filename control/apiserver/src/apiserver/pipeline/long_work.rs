//! Keeps long work off the threads that answer requests: patterns and rules of schemas, expressions of policies and conditions.
//!
//! How long such work takes is said by those who have written it, and by the object. It is begun where it is needed, with an
//! effort that is over within a millisecond or so, which is enough for nearly all objects. What takes longer is done again from
//! its beginning on one of a few threads of its own.

use std::sync::Arc;

use serde_json::Value;
use windlass_apimachinery::effort::Effort;
use windlass_cel::{Findings, RuleBudget};
use windlass_kit::blocking::{EXPRESSIONS, LaneError};

use super::validation::{FieldError, Reach, Validation, all_fields, fields};
use crate::apiserver::{
    request::error::ApiError,
    types::{TypeSchema, Version},
};

/// What may be taken on a thread that answers requests.
pub(crate) const SERVING_EFFORT: u64 = 20_000;

/// Does work on a thread for long work. `owner` is whose expressions or schemas make it long: the others have a thread, too.
///
/// # Errors
/// Too much of it waits already, or it panicked.
pub(crate) async fn apart<T: Send + 'static>(
    owner: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    EXPRESSIONS.call_for(owner, work).await.map_err(|error| match error {
        LaneError::Busy { .. } => {
            let why = format!("the expressions and schemas that this request is about take long: {error}");
            ApiError::new(429, "TooManyRequests", why).with_retry_after(1)
        }
        LaneError::Lost(_) => ApiError::internal(error),
    })
}

impl Validation<'_> {
    /// Validates, wherever there is time for it. `version` is that of the object.
    ///
    /// # Errors
    /// When there is too much long work. Errors of the object are findings.
    pub(crate) async fn complete(&self, version: &Arc<Version>) -> Result<Findings, ApiError> {
        let is_whole = self.reach == Reach::Whole && self.part.is_none();
        if is_whole && version.strategy.validation_takes_long(self.old) {
            let (version, new, old, reach) = (Arc::clone(version), self.new.clone(), self.old.cloned(), self.reach);
            return apart(&self.version.group_resource(), move || {
                Validation { version: &version, new: &new, old: old.as_ref(), reach, part: None }.run()
            })
            .await;
        }
        let schema = &version.spec.schema;
        if schema.is_built_in() {
            return Ok(self.run());
        }
        if !schema.is_compiled() {
            let schema = schema.clone();
            apart(&self.version.group_resource(), move || schema.has_rules()).await?;
        }
        let checked = self.check(self.fields(schema).await?);
        if !checked.are_rules_due {
            return Ok(checked.found(Findings::default()));
        }
        let of_rules = self.rules(schema).await?;
        Ok(checked.found(of_rules))
    }

    async fn fields(&self, schema: &TypeSchema) -> Result<Vec<FieldError>, ApiError> {
        let mut effort = Effort::new(SERVING_EFFORT);
        let errors = fields(schema, self.reach, self.new, self.old, &mut effort);
        if !effort.is_exceeded() {
            return Ok(errors);
        }
        let (schema, new, old, reach) = (schema.clone(), self.new.clone(), self.old.cloned(), self.reach);
        apart(&self.version.group_resource(), move || all_fields(&schema, reach, &new, old.as_ref())).await
    }

    async fn rules(&self, schema: &TypeSchema) -> Result<Findings, ApiError> {
        let mut budget = RuleBudget::default().within(Effort::new(SERVING_EFFORT));
        let found = schema.validate_rules(self.new, self.old, &mut budget);
        if !budget.took_too_long() {
            return Ok(found);
        }
        let (schema, new, old): (_, _, Option<Value>) = (schema.clone(), self.new.clone(), self.old.cloned());
        apart(&self.version.group_resource(), move || {
            schema.validate_rules(&new, old.as_ref(), &mut RuleBudget::default())
        })
        .await
    }
}
