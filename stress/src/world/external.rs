//! Engines that run already.

use anyhow::bail;

/// Where to find them and what they stand on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The engines' front doors.
    pub engines: Vec<String>,
    /// Their database, as somebody who may read all of it.
    pub postgres_url: String,
    /// Their Redis.
    pub redis_url: String,
    /// Their payment provider.
    pub provider_url: String,
}

/// Command line for engines that run already.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An engine that runs already, http://HOST:PORT; can be given several times.
    #[arg(long, value_name = "URL", num_args = 1..)]
    url: Vec<String>,
    /// Its database, as a role that may read all of it. With --url.
    #[arg(long, value_name = "URL", requires = "url")]
    postgres_url: Option<String>,
    /// Its Redis. With --url.
    #[arg(long, value_name = "URL", requires = "url")]
    redis_url: Option<String>,
    /// Its payment provider. With --url.
    #[arg(long, value_name = "URL", requires = "url")]
    provider_url: Option<String>,
}

impl Args {
    /// The engines that were named; `None` when the harness is to start its own.
    ///
    /// # Errors
    /// When engines were named but not what they stand on.
    pub fn target(self) -> anyhow::Result<Option<Target>> {
        if self.url.is_empty() {
            return Ok(None);
        }
        match (self.postgres_url, self.redis_url, self.provider_url) {
            (Some(postgres_url), Some(redis_url), Some(provider_url)) => Ok(Some(Target {
                engines: self.url,
                postgres_url,
                redis_url,
                provider_url,
            })),
            _ => bail!(
                "with --url, --postgres-url, --redis-url and --provider-url must be given: the audit reads them"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(url: &[&str], postgres_url: Option<&str>) -> Args {
        Args {
            url: url.iter().map(|url| (*url).to_owned()).collect(),
            postgres_url: postgres_url.map(str::to_owned),
            redis_url: Some("redis://r".to_owned()),
            provider_url: Some("http://p".to_owned()),
        }
    }

    #[test]
    fn an_engine_alone_can_not_be_audited() {
        assert_eq!(args(&[], None).target().unwrap(), None);
        assert!(args(&["http://e"], None).target().is_err());
        let target = args(&["http://e", "http://f"], Some("postgres://d"))
            .target()
            .unwrap()
            .unwrap();
        assert_eq!(target.engines, ["http://e", "http://f"]);
    }
}
