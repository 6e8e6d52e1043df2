"""The platform: adopted runs, logs by pieces, GPUs, API tokens, quotas, and messages about runs that ended."""

import sqlalchemy as sa
from alembic import op

from dare_platform.errors import SchemaError

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ADDED = {
    "account": (
        ("email", sa.Text()),
        ("entries_per_day", sa.Integer()),
        ("device_hours_per_week", sa.Float(precision=53)),
    ),
    "attempt": (("job_token", sa.Integer()),),
    "worker": (("gpu_uuid", sa.Text()),),
}


def upgrade() -> None:
    for table, columns in ADDED.items():
        for name, kind in columns:
            op.add_column(table, sa.Column(name, kind, nullable=True))
    op.add_column("run", sa.Column("job_token", sa.Integer(), server_default="0", nullable=False))
    op.execute("UPDATE run SET job_token = lease_token")
    op.execute("UPDATE attempt SET job_token = token")
    with op.batch_alter_table("algorithm") as table:  # a name is its owner's: see entry_rows.algorithm_row
        table.drop_constraint(op.f("uq_algorithm_slug"), type_="unique")
        table.create_unique_constraint(op.f("uq_algorithm_owner_id_slug"), ["owner_id", "slug"])
    _work()
    _people()
    _refuse_changes("quota_ledger")


def _work() -> None:
    op.create_table(
        "log_chunk",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("length(content) BETWEEN 1 AND 65536", name=op.f("ck_log_chunk_content")),
        sa.CheckConstraint('"offset" >= 0', name=op.f("ck_log_chunk_offset")),
        _of_attempt("log_chunk"),
        sa.PrimaryKeyConstraint("run_id", "token", "offset", name=op.f("pk_log_chunk")),
    )
    op.create_table(
        "gpu_device",
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("health", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.Float(precision=53), nullable=False),
        sa.CheckConstraint("health IN ('ok', 'suspect', 'bad', 'absent')", name=op.f("ck_gpu_device_health")),
        sa.CheckConstraint("memory_mib > 0", name=op.f("ck_gpu_device_memory_mib")),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_gpu_device")),
    )
    op.create_table(
        "gpu_lease",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("gpu_uuid", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("acquired_at", sa.Float(precision=53), nullable=False),
        sa.Column("released_at", sa.Float(precision=53), nullable=True),
        _of_attempt("gpu_lease"),
        _to("gpu_lease", "gpu_uuid", "gpu_device.uuid"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_lease")),
    )
    held = sa.text("released_at IS NULL")
    op.create_index(
        "uq_gpu_lease_active", "gpu_lease", ["gpu_uuid"], unique=True, sqlite_where=held, postgresql_where=held
    )


def _people() -> None:
    op.create_table(
        "api_token",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        *(sa.Column(name, sa.DateTime(timezone=True), nullable=name != "created_at") for name in TOKEN_TIMES),
        _to("api_token", "account_id", "account.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_api_token_token_sha256")),
    )
    op.create_index("ix_api_token_account_id", "api_token", ["account_id"])
    op.create_table(
        "quota_ledger",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("amount", sa.Float(precision=53), nullable=False),
        sa.Column("entry_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("reverses", sa.Text(), nullable=True),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.CheckConstraint("kind IN ('entries', 'device_seconds')", name=op.f("ck_quota_ledger_kind")),
        sa.CheckConstraint("amount BETWEEN -1e300 AND 1e300", name=op.f("ck_quota_ledger_amount_finite")),
        _to("quota_ledger", "account_id", "account.id"),
        _to("quota_ledger", "entry_id", "entry.id"),
        _to("quota_ledger", "run_id", "run.id"),
        _to("quota_ledger", "reverses", "quota_ledger.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quota_ledger")),
        sa.UniqueConstraint("reverses", name=op.f("uq_quota_ledger_reverses")),
        sa.UniqueConstraint("run_id", "kind", "reverses", name=op.f("uq_quota_ledger_run")),
    )
    op.create_index("ix_quota_ledger_account", "quota_ledger", ["account_id", "kind", "at"])
    op.create_table(
        "subscription",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=True),
        sa.Column("entry_id", sa.Text(), nullable=True),
        sa.Column(
            "each_run",
            sa.Boolean(create_constraint=True, name=op.f("ck_subscription_each_run")),
            server_default=sa.text("false"),
            nullable=False,
        ),
        sa.Column("created_at", sa.Float(precision=53), nullable=False),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.CheckConstraint("channel IN ('webhook', 'mail')", name=op.f("ck_subscription_channel")),
        _to("subscription", "account_id", "account.id"),
        _to("subscription", "entry_id", "entry.id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_subscription")),
    )
    op.create_index("ix_subscription_account_id", "subscription", ["account_id"])
    op.create_table(
        "delivery",
        sa.Column("subscription_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before", sa.Float(precision=53), server_default="0", nullable=False),
        sa.Column("sent_at", sa.Float(precision=53), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'sent', 'failed')", name=op.f("ck_delivery_state")),
        _to("delivery", "subscription_id", "subscription.id"),
        _to("delivery", "run_id", "run.id"),
        sa.PrimaryKeyConstraint("subscription_id", "run_id", name=op.f("pk_delivery")),
    )
    op.create_index("ix_delivery_state", "delivery", ["state", "not_before"])


TOKEN_TIMES = ("created_at", "expires_at", "revoked_at", "last_used_at")


def downgrade() -> None:
    twice = op.get_bind().execute(sa.text("SELECT slug FROM algorithm GROUP BY slug HAVING count(*) > 1")).first()
    if twice is not None:
        raise SchemaError(
            f"two accounts have an algorithm {twice[0]!r}, which revision 0002 cannot hold: nothing was changed"
        )
    with op.batch_alter_table("algorithm") as table:
        table.drop_constraint(op.f("uq_algorithm_owner_id_slug"), type_="unique")
        table.create_unique_constraint(op.f("uq_algorithm_slug"), ["slug"])
    for table in ("delivery", "subscription", "quota_ledger", "api_token", "gpu_lease", "gpu_device", "log_chunk"):
        op.drop_table(table)
    op.drop_column("run", "job_token")
    for table, columns in ADDED.items():
        for name, _ in columns:
            op.drop_column(table, name)


def _to(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [target], name=op.f(f"fk_{table}_{column}"), ondelete="RESTRICT")


def _of_attempt(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["run_id", "token"], ["attempt.run_id", "attempt.token"], name=op.f(f"fk_{table}_attempt"), ondelete="RESTRICT"
    )


def _refuse_changes(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER tr_{table}_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER tr_{table}_no_{change.lower()} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed nor deleted'); END"
        )
