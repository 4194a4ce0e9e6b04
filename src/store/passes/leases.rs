//! The lease of a pass: who runs it, and until when nobody else does (RUL-L-56). Compared on the lease clock (RUL-29).

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::prelude::*;

use fountain_actors::domain::*;
use fountain_actors::ports::clock::after;
use fountain_actors::ports::store::StoreError;

use crate::locked;
use crate::on_backend;
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{at, moment};
use crate::store::schema::pass_leases;

type Lease = (Option<String>, i64, Option<NaiveDateTime>);

/// Takes or keeps the lease. None while somebody else's lives.
pub fn take(db: &mut Db, pass: &str, holder: &str, ttl: Duration, now: Moment) -> Result<Option<Epoch>, Fault> {
    // The row is made once and never deleted, so that its epoch only grows.
    on_backend!(db, |conn| diesel::insert_into(pass_leases::table)
        .values((pass_leases::name.eq(pass), pass_leases::epoch.eq(0_i64)))
        .on_conflict_do_nothing()
        .execute(conn))?;
    let (held_by, epoch, until): Lease = locked!(
        db,
        first,
        pass_leases::table
            .find(pass)
            .select((pass_leases::holder, pass_leases::epoch, pass_leases::until))
    )?;
    let clock = lease_clock(db, now)?;
    let lives = until.is_some_and(|until| moment(until) > clock);
    let epoch = match held_by.as_deref() {
        Some(other) if lives && other != holder => return Ok(None),
        Some(_) if lives => epoch,
        _ => epoch + 1,
    };
    diesel::update(pass_leases::table.find(pass))
        .set((
            pass_leases::holder.eq(Some(holder)),
            pass_leases::epoch.eq(epoch),
            pass_leases::until.eq(Some(at(after(clock, ttl)))),
        ))
        .execute(db)?;
    Ok(Some(Epoch(epoch)))
}

/// Moves the end of a lease that is still this holder's.
pub fn renew(db: &mut Db, pass: &str, holder: &str, epoch: Epoch, ttl: Duration, now: Moment) -> Result<(), Fault> {
    let until = after(lease_clock(db, now)?, ttl);
    let touched = diesel::update(pass_leases::table.find(pass))
        .filter(pass_leases::holder.eq(holder))
        .filter(pass_leases::epoch.eq(epoch.0))
        .set(pass_leases::until.eq(Some(at(until))))
        .execute(db)?;
    match touched {
        0 => Err(StoreError::Stale("pass lease").into()),
        _ => Ok(()),
    }
}
