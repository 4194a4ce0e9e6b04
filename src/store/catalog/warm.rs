//! The checkpoint of an environment, one JSON document in its row, and the addresses whose checkpoints are not believed
//! for a while (RUL-L-34).
//!
//! A document and not columns: its parts are only ever read, compared and replaced together. Recording holds the
//! environment's row, so that it and a change of a warm-start field come one after the other (lifecycle 1.8).

use diesel::prelude::*;

use fountain_actors::domain::environment::EnvironmentCheckpoint;
use fountain_actors::domain::*;
use fountain_actors::ports::store::warm::{Recorded, WarmStore};
use fountain_actors::ports::store::{Answer, StoreError};

use super::environments::hold;
use crate::store::SqlStore;
use crate::store::backend::{Access, Db, Fault};
use crate::store::columns::{at, json, key};
use crate::store::schema::{distrusted_checkpoints, environments};

impl WarmStore for SqlStore {
    fn environment_checkpoint(
        &self,
        account: AccountId,
        environment: EnvironmentId,
    ) -> Answer<'_, Option<EnvironmentCheckpoint>> {
        self.answer("environment.checkpoint", Access::Read, move |db| {
            recorded(db, account, environment)
        })
    }

    fn record_checkpoint(
        &self,
        account: AccountId,
        environment: EnvironmentId,
        checkpoint: EnvironmentCheckpoint,
    ) -> Answer<'_, Recorded> {
        self.answer("environment.record_checkpoint", Access::Write, move |db| {
            let now = match hold(db, account, environment) {
                Ok(now) => now,
                Err(Fault::Verdict(StoreError::NotFound(_))) => return Ok(Recorded::Outdated),
                Err(error) => return Err(error),
            };
            if now.config.warm_start_fingerprint() != checkpoint.fingerprint {
                return Ok(Recorded::Outdated);
            }
            let replaced = recorded(db, account, environment)?;
            diesel::update(environments::table.find(key(environment)))
                .set(environments::checkpoint.eq(json(&checkpoint)))
                .execute(db)?;
            Ok(Recorded::Kept { replaced })
        })
    }

    fn clear_checkpoint(
        &self,
        account: AccountId,
        environment: EnvironmentId,
        checkpoint: EnvironmentCheckpoint,
    ) -> Answer<'_, bool> {
        self.answer("environment.clear_checkpoint", Access::Write, move |db| {
            match hold(db, account, environment) {
                Ok(_) => {}
                Err(Fault::Verdict(StoreError::NotFound(_))) => return Ok(false),
                Err(error) => return Err(error),
            }
            if recorded(db, account, environment)?.as_ref() != Some(&checkpoint) {
                return Ok(false);
            }
            diesel::update(environments::table.find(key(environment)))
                .set(environments::checkpoint.eq(None::<String>))
                .execute(db)?;
            Ok(true)
        })
    }

    fn distrust_checkpoints(&self, address: String, until: Moment) -> Answer<'_, ()> {
        self.answer("checkpoint.distrust", Access::Write, move |db| {
            diesel::delete(distrusted_checkpoints::table.find(&address)).execute(db)?;
            diesel::insert_into(distrusted_checkpoints::table)
                .values((
                    distrusted_checkpoints::address.eq(&address),
                    distrusted_checkpoints::until.eq(at(until)),
                ))
                .execute(db)?;
            Ok(())
        })
    }

    fn checkpoints_distrusted(&self, address: String, now: Moment) -> Answer<'_, bool> {
        self.answer("checkpoint.distrusted", Access::Read, move |db| {
            let rows: i64 = distrusted_checkpoints::table
                .filter(distrusted_checkpoints::address.eq(&address))
                .filter(distrusted_checkpoints::until.gt(at(now)))
                .count()
                .get_result(db)?;
            Ok(rows > 0)
        })
    }
}

fn recorded(db: &mut Db, account: AccountId, id: EnvironmentId) -> Result<Option<EnvironmentCheckpoint>, Fault> {
    let document: Option<Option<String>> = environments::table
        .filter(environments::id.eq(key(id)))
        .filter(environments::account_id.eq(key(account)))
        .select(environments::checkpoint)
        .first(db)
        .optional()?;
    // An unreadable one costs a cold build, which replaces it.
    Ok(document.flatten().and_then(|text| serde_json::from_str(&text).ok()))
}
