"""The servers of the scenario `http`, which answer the same requests, and their clients.

GET /wait?topic=T&after=N    the number of messages of the topic, when it is more than N, or after `timeout` seconds
POST /publish?topic=T        one message more
GET /waiting                 the number of requests that wait
GET /now                     an answer at once
"""
