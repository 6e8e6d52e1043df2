"""Alembic's entry: runs the revisions on the connection that `database.migrate` opened and locked."""

from alembic import context

from dare_platform.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
