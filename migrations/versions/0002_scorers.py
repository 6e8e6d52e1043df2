"""Two scorers: answers that were not decoded and scorers that failed are counted, and a score run is named."""

import sqlalchemy as sa
from alembic import op

from dare_platform.errors import SchemaError

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COUNTS = ("n_undecoded", "n_error")
STATUS = "ck_score_item_status"
BEFORE = "status IN ('ok', 'no_answer', 'truncated', 'error')"
AFTER = "status IN ('ok', 'no_answer', 'truncated', 'undecoded', 'error')"


def upgrade() -> None:
    with op.batch_alter_table("score_item", copy_from=_score_item(BEFORE)) as table:
        table.drop_constraint(op.f(STATUS), type_="check")
        table.create_check_constraint(op.f(STATUS), AFTER)
    with op.batch_alter_table("result", copy_from=_result()) as table:
        for name in COUNTS:
            table.add_column(sa.Column(name, sa.Integer(), server_default="0", nullable=False))
            table.create_check_constraint(op.f(f"ck_result_{name}"), f"{name} >= 0")
        table.add_column(sa.Column("scored_by", sa.Text(), nullable=True))
        table.create_foreign_key(op.f("fk_result_scored_by"), "run", ["scored_by"], ["id"], ondelete="RESTRICT")
    _keep_refusing_changes()


def downgrade() -> None:
    undecoded = sa.text("SELECT count(*) FROM score_item WHERE status = 'undecoded'")
    found = op.get_bind().execute(undecoded).scalar_one()
    if found:
        raise SchemaError(
            f"{found} scored answers have the status 'undecoded', which revision 0001 cannot hold: nothing was changed"
        )
    with op.batch_alter_table("result", copy_from=_result(*COUNTS)) as table:
        table.drop_constraint(op.f("fk_result_scored_by"), type_="foreignkey")
        table.drop_column("scored_by")
        for name in COUNTS:
            table.drop_constraint(op.f(f"ck_result_{name}"), type_="check")
            table.drop_column(name)
    with op.batch_alter_table("score_item", copy_from=_score_item(AFTER)) as table:
        table.drop_constraint(op.f(STATUS), type_="check")
        table.create_check_constraint(op.f(STATUS), BEFORE)
    _keep_refusing_changes()


def _keep_refusing_changes() -> None:
    """SQLite made both tables anew, and their triggers went with the old ones."""
    if op.get_bind().dialect.name != "sqlite":
        return
    for table in ("score_item", "result"):
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER tr_{table}_no_{change.lower()} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are never changed nor deleted'); END"
            )


# --- the tables as they are before, which SQLite cannot be asked for in full ----------------------------------------


def _score_item(status: str) -> sa.Table:
    return sa.Table(
        "score_item",
        sa.MetaData(),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task_version_id", sa.Text(), nullable=False),
        sa.Column("item_id", sa.Text(), nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("scorer", sa.Text(), nullable=False),
        sa.Column("score", sa.Float(precision=53), nullable=False),
        sa.Column("reward", sa.Float(precision=53), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.CheckConstraint(status, name=STATUS),
        sa.CheckConstraint("reward BETWEEN -1e300 AND 1e300", name="ck_score_item_reward_finite"),
        sa.CheckConstraint("score BETWEEN -1e300 AND 1e300", name="ck_score_item_score_finite"),
        sa.ForeignKeyConstraint(
            ["run_id", "task_version_id", "item_id", "sample"],
            ["prediction.run_id", "prediction.task_version_id", "prediction.item_id", "prediction.sample"],
            name="fk_score_item_prediction",
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("run_id", "task_version_id", "item_id", "sample", "scorer", name="pk_score_item"),
    )


def _result(*counts: str) -> sa.Table:
    """With `counts`: as this revision leaves it."""
    added: list[sa.schema.SchemaItem] = []
    for name in counts:
        added.append(sa.Column(name, sa.Integer(), server_default="0", nullable=False))
        added.append(sa.CheckConstraint(f"{name} >= 0", name=f"ck_result_{name}"))
    if counts:
        added.append(sa.Column("scored_by", sa.Text(), nullable=True))
        added.append(
            sa.ForeignKeyConstraint(["scored_by"], ["run.id"], name="fk_result_scored_by", ondelete="RESTRICT")
        )
    return sa.Table(
        "result",
        sa.MetaData(),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("task_version_id", sa.Text(), nullable=False),
        sa.Column("scorer", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("decoding", sa.Text(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(precision=53), nullable=False),
        sa.Column("standard_error", sa.Float(precision=53), nullable=True),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("n_no_answer", sa.Integer(), nullable=False),
        sa.Column("n_truncated", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("recorded_at", sa.Float(precision=53), nullable=False),
        sa.CheckConstraint("decoding IN ('greedy', 'sampled')", name="ck_result_decoding"),
        sa.CheckConstraint("n > 0", name="ck_result_n"),
        sa.CheckConstraint("n_no_answer >= 0", name="ck_result_n_no_answer"),
        sa.CheckConstraint("n_truncated >= 0", name="ck_result_n_truncated"),
        sa.CheckConstraint("standard_error BETWEEN 0 AND 1e300", name="ck_result_standard_error_not_negative"),
        sa.CheckConstraint("value BETWEEN -1e300 AND 1e300", name="ck_result_value_finite"),
        sa.ForeignKeyConstraint(
            ["run_id", "token"],
            ["attempt.run_id", "attempt.token"],
            name="fk_result_run_id_token",
            ondelete="RESTRICT",
        ),
        sa.ForeignKeyConstraint(
            ["task_version_id"], ["task_version.id"], name="fk_result_task_version_id", ondelete="RESTRICT"
        ),
        sa.PrimaryKeyConstraint("run_id", "task_version_id", "scorer", "metric", "decoding", name="pk_result"),
        sa.Index("ix_result_task", "task_version_id", "scorer"),
        *added,
    )
