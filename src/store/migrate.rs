//! Migrations: run by the schema's owner, never by the engine's role.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{Connection, PgConnection};

/// All migrations, embedded.
static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// Brings the schema at `owner_url` up to date. Safe to run twice and at the same time: whoever comes second waits.
///
/// # Errors
/// When the server can't be reached, or a migration fails or was changed after it had been applied.
pub async fn migrate(owner_url: &str) -> Result<(), MigrateError> {
    let mut connection = PgConnection::connect(owner_url)
        .await
        .map_err(MigrateError::Execute)?;
    MIGRATOR.run(&mut connection).await?;
    connection.close().await.map_err(MigrateError::Execute)
}

/// The versions that this build needs.
pub fn versions() -> Vec<i64> {
    MIGRATOR.iter().map(|migration| migration.version).collect()
}
