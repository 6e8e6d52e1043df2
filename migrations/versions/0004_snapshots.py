"""Snapshots: boards as they were shown once."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "snapshot",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("track_version_id", sa.Text(), nullable=False),
        sa.Column("backbone", sa.Text(), nullable=False),
        sa.Column("made_at", sa.Float(precision=53), nullable=False),
        sa.Column("board_json", sa.Text(), nullable=False),
        sa.Column("runs_json", sa.Text(), nullable=False),
        sa.Column("inputs_sha256", sa.Text(), nullable=False),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_snapshot_sha256")),
        sa.CheckConstraint("length(inputs_sha256) = 64", name=op.f("ck_snapshot_inputs_sha256")),
        sa.ForeignKeyConstraint(
            ["track_version_id"],
            ["track_version.id"],
            name=op.f("fk_snapshot_track_version_id"),
            ondelete="RESTRICT",
        ),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_snapshot")),
    )
    op.create_index("ix_snapshot_board", "snapshot", ["track_version_id", "backbone", "made_at"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER tr_snapshot_immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON snapshot "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER tr_snapshot_no_{change.lower()} BEFORE {change} ON snapshot "
            "BEGIN SELECT RAISE(ABORT, 'rows of snapshot are never changed nor deleted'); END"
        )


def downgrade() -> None:
    op.drop_table("snapshot")
