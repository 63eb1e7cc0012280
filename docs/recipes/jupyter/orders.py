# %%
import jetsync

client = jetsync.connect()
js = client.jetstream()
stream = js.create_or_update_stream("ORDERS", subjects=["orders.>"], allow_direct=True)
client

# %%
report = js.publish_many((f"orders.eu.{n}", f"{n} chairs") for n in range(100))
report.count

# %%
# The stored messages, without a consumer.
[(message.sequence, message.subject, message.data) for message in stream.scan(end=3)]

# %%
# One list for each column of a data frame.
page = next(iter(stream.scan().pages()))
columns = {"sequence": page.sequences, "subject": page.subjects, "data": page.data}
len(columns["data"])

# %%
worker = stream.create_consumer()  # without a name: deleted when it is unused
messages = list(worker.fetch(10, expires=5))
[message.ack() for message in messages]
messages[-1].metadata.pending
