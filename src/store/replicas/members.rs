//! Heartbeats.

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::dsl::{exists, select};
use diesel::prelude::*;

use fountain_actors::domain::*;
use fountain_actors::ports::clock::before;
use fountain_actors::ports::store::replicas::{Beat, MEMBER_FOR, Member};

use crate::on_backend;
use crate::store::backend::{Db, Fault, Kind, lease_clock};
use crate::store::columns::{at, moment};
use crate::store::schema::replicas;

/// How long the row of a process that is gone is kept. Its leases are over long before.
const KEPT: Duration = Duration::from_secs(3600);

type Row = (String, String, bool, NaiveDateTime);

fn member((holder, url, draining, heartbeat): Row) -> Member {
    Member {
        holder,
        url,
        draining,
        heartbeat: moment(heartbeat),
    }
}

/// The oldest heartbeat that still makes a member.
fn bound(clock: Moment) -> NaiveDateTime {
    at(before(clock, MEMBER_FOR))
}

pub fn beat(db: &mut Db, beat: Beat) -> Result<Vec<Member>, Fault> {
    let mut clock = lease_clock(db, beat.now)?;
    if db.kind() == Kind::Sqlite {
        // While the wall stands before what was stored, time goes on by what the process measured (RUL-L-11).
        clock = beat.at_least.map_or(clock, |at_least| clock.max(at_least));
    }
    let row = (
        replicas::holder.eq(&beat.holder),
        replicas::url.eq(&beat.url),
        replicas::heartbeat.eq(at(clock)),
        replicas::draining.eq(beat.draining),
    );
    let touched = diesel::update(replicas::table.find(&beat.holder))
        .set((
            replicas::url.eq(&beat.url),
            replicas::heartbeat.eq(at(clock)),
            replicas::draining.eq(beat.draining),
        ))
        .execute(db)?;
    if touched == 0 {
        // One writer a row: the holder's name is new with every process.
        diesel::insert_into(replicas::table).values(row).execute(db)?;
    }
    diesel::delete(replicas::table.filter(replicas::heartbeat.lt(at(before(clock, KEPT))))).execute(db)?;
    listed(db, clock)
}

pub fn all(db: &mut Db, now: Moment) -> Result<Vec<Member>, Fault> {
    let clock = lease_clock(db, now)?;
    listed(db, clock)
}

fn listed(db: &mut Db, clock: Moment) -> Result<Vec<Member>, Fault> {
    let rows: Vec<Row> = replicas::table
        .filter(replicas::heartbeat.ge(bound(clock)))
        .order(replicas::holder)
        .select((replicas::holder, replicas::url, replicas::draining, replicas::heartbeat))
        .load(db)?;
    Ok(rows.into_iter().map(member).collect())
}

pub fn of(db: &mut Db, holder: &str, clock: Moment) -> Result<Option<Member>, Fault> {
    let row: Option<Row> = replicas::table
        .find(holder)
        .filter(replicas::heartbeat.ge(bound(clock)))
        .select((replicas::holder, replicas::url, replicas::draining, replicas::heartbeat))
        .first(db)
        .optional()?;
    Ok(row.map(member))
}

/// A process is connected (RUL-L-7).
pub fn is_member(db: &mut Db, holder: &str, clock: Moment) -> Result<bool, Fault> {
    let found = replicas::table
        .filter(replicas::holder.eq(holder))
        .filter(replicas::heartbeat.ge(bound(clock)));
    Ok(on_backend!(db, |conn| select(exists(found)).get_result(conn))?)
}

/// The other processes are gone, and the newest moment that any of them stored stays: the clock does not fall behind it
/// (RUL-L-11).
pub fn inherit(db: &mut Db, holder: &str) -> Result<(), Fault> {
    let newest: Option<(String, NaiveDateTime)> = replicas::table
        .order(replicas::heartbeat.desc())
        .select((replicas::holder, replicas::heartbeat))
        .first(db)
        .optional()?;
    let Some((newest, _)) = newest.filter(|(newest, _)| newest != holder) else {
        diesel::delete(replicas::table.filter(replicas::holder.ne(holder))).execute(db)?;
        return Ok(());
    };
    diesel::delete(replicas::table.filter(replicas::holder.ne(&newest))).execute(db)?;
    diesel::update(replicas::table.find(&newest))
        .set(replicas::holder.eq(holder))
        .execute(db)?;
    Ok(())
}

pub fn remove(db: &mut Db, holder: &str) -> Result<(), Fault> {
    diesel::delete(replicas::table.find(holder)).execute(db)?;
    Ok(())
}
