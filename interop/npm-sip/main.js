// User agents of the npm package `sip` that register at a server and call each other through its proxy. Each case
// prints one line: `ok NAME: DETAIL` or `FAIL NAME: REASON`.
'use strict';

const crypto = require('crypto');
const net = require('net');
const sip = require('sip');
const digest = require('sip/digest');

const [port, transport, password] = process.argv.slice(2);
const DOMAIN = 'example.org';
// The package takes a Route with its own host for one that leads to itself. So agents have another address than the
// server.
const ADDRESS = '127.0.0.5';
const ROUTE = `sip:127.0.0.1:${port};transport=${transport};lr`;
// Longer than any case takes.
const LIMIT_MS = 20000;
const DESCRIPTION =
  'v=0\r\no=- 1 1 IN IP4 127.0.0.5\r\ns=-\r\nc=IN IP4 127.0.0.5\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n';

const random = () => crypto.randomBytes(8).toString('hex');
const aor = (user) => `sip:${user}@${DOMAIN}`;

// The package requires a port.
function freePort() {
  return new Promise((resolve, reject) => {
    const server = net.createServer().listen(0, ADDRESS, () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
    server.on('error', reject);
  });
}

// A user agent of one user: it calls, and what it does when it is called follows from its name.
class Agent {
  static async start(user) {
    const agent = new Agent();
    agent.user = user;
    const here = await freePort();
    agent.contact = `sip:${user}@${ADDRESS}:${here};transport=${transport}`;
    // Methods of the requests that have come, and who waits for one.
    agent.came = [];
    agent.waiting = [];
    agent.calls = new Map();
    const options = { address: ADDRESS, port: here, udp: transport === 'udp', tcp: transport === 'tcp' };
    agent.stack = sip.create(options, (request) => agent.requested(request));
    return agent;
  }

  // Waits until this has come.
  async expect(what) {
    for (;;) {
      const place = this.came.indexOf(what);
      if (place >= 0) {
        this.came.splice(0, place + 1);
        return;
      }
      await new Promise((resolve) => this.waiting.push(resolve));
    }
  }

  note(what) {
    this.came.push(what);
    this.waiting.splice(0).forEach((resolve) => resolve());
  }

  // A request outside of dialogs.
  request(method, uri, to, id, seq) {
    return {
      method,
      uri,
      headers: {
        to: { uri: to },
        from: { uri: aor(this.user), params: { tag: id.slice(0, 8) } },
        'call-id': id,
        cseq: { method, seq },
        contact: [{ uri: this.contact }],
        route: [{ uri: ROUTE }],
        'max-forwards': 70,
      },
    };
  }

  // Sends a request. Returns its final response; `seen` gets all responses.
  send(request, seen = () => {}) {
    return new Promise((resolve) => {
      this.stack.send(request, (response) => {
        seen(response);
        if (response.status >= 200) resolve(response);
      });
    });
  }

  // Sends a request made by `make`, and again with the credentials that a challenge asks for.
  async ask(make, secret, seen) {
    const first = await this.send(make(1), (response) => response.status < 200 && seen && seen(response));
    if (first.status !== 401 && first.status !== 407) {
      throw new Error(`it is not challenged but answered ${first.status}`);
    }
    const request = make(2);
    digest.signRequest({}, request, first, { user: this.user, realm: DOMAIN, password: secret });
    this.asked = request;
    return this.send(request, seen);
  }

  async register(secret) {
    const id = random();
    const make = (seq) => {
      const request = this.request('REGISTER', `sip:${DOMAIN}`, aor(this.user), id, seq);
      request.headers.expires = 600;
      return request;
    };
    return (await this.ask(make, secret)).status;
  }

  // Calls a user. Returns the response and, if it is a 2xx, the dialog.
  async call(user, onRinging) {
    const id = random();
    const make = (seq) => described(this.request('INVITE', aor(user), aor(user), id, seq));
    const seen = (response) => {
      if (response.status === 180 && onRinging) onRinging();
      // The 2xx may arrive again.
      if (response.status >= 200 && response.status < 300) this.acknowledge(response);
    };
    const response = await this.ask(make, password, seen);
    if (response.status >= 300) return { response };
    const routes = (response.headers['record-route'] || []).slice().reverse();
    const dialog = {
      id,
      local: response.headers.from,
      remote: response.headers.to,
      target: response.headers.contact[0].uri,
      routes,
      seq: response.headers.cseq.seq,
    };
    this.calls.set(id, dialog);
    return { response, dialog };
  }

  // A request within a dialog.
  within(dialog, method, seq) {
    return {
      method,
      uri: dialog.target,
      headers: {
        to: dialog.remote,
        from: dialog.local,
        'call-id': dialog.id,
        cseq: { method, seq },
        contact: [{ uri: this.contact }],
        route: dialog.routes.slice(),
        'max-forwards': 70,
      },
    };
  }

  acknowledge(response) {
    const { headers } = response;
    const dialog = {
      id: headers['call-id'],
      local: headers.from,
      remote: headers.to,
      target: headers.contact[0].uri,
      routes: (headers['record-route'] || []).slice().reverse(),
    };
    // A response to a second INVITE may lack the routes: the route set is that of the first one.
    const known = this.calls.get(dialog.id);
    if (known) dialog.routes = known.routes;
    this.stack.send(this.within(dialog, 'ACK', headers.cseq.seq));
  }

  async invitesAgain(dialog) {
    dialog.seq += 1;
    const request = described(this.within(dialog, 'INVITE', dialog.seq));
    const response = await this.send(request, (response) => {
      if (response.status >= 200 && response.status < 300) this.acknowledge(response);
    });
    if (response.status !== 200) throw new Error(`the second INVITE is answered ${response.status}`);
  }

  async hangUp(dialog) {
    dialog.seq += 1;
    const { status } = await this.send(this.within(dialog, 'BYE', dialog.seq));
    if (status !== 200) throw new Error(`the BYE is answered ${status}`);
  }

  // Cancels the INVITE that was sent last.
  async cancel() {
    const { uri, headers } = this.asked;
    const { status } = await this.send({
      method: 'CANCEL',
      uri,
      headers: {
        via: [{ ...headers.via[0], params: { ...headers.via[0].params } }],
        to: { uri: headers.to.uri },
        from: headers.from,
        'call-id': headers['call-id'],
        cseq: { method: 'CANCEL', seq: headers.cseq.seq },
        route: headers.route.slice(),
        'max-forwards': 70,
      },
    });
    return status;
  }

  requested(request) {
    this.note(request.method);
    const answer = (status, reason, more = {}) => {
      const headers = { 'record-route': request.headers['record-route'], ...more.headers };
      this.stack.send(sip.makeResponse(request, status, reason, { ...more, headers }));
    };
    const accept = () =>
      answer(200, 'OK', {
        headers: { contact: [{ uri: this.contact }], 'content-type': 'application/sdp' },
        content: DESCRIPTION,
      });
    const { to } = request.headers;
    switch (request.method) {
      case 'ACK':
        if (this.user === 'short' && this.answered) this.endsSoon();
        return;
      case 'BYE':
        answer(200, 'OK');
        return;
      case 'CANCEL':
        answer(200, 'OK');
        this.stack.send(sip.makeResponse(this.ringing, 487, 'Request Terminated'));
        return;
      case 'INVITE':
        break;
      default:
        answer(405, 'Method Not Allowed');
        return;
    }
    if (to.params.tag) {
      accept();
      return;
    }
    to.params.tag = random();
    if (this.user === 'busy') {
      answer(486, 'Busy Here');
      return;
    }
    answer(180, 'Ringing', { headers: { contact: [{ uri: this.contact }] } });
    if (this.user === 'ringing') {
      this.ringing = request;
      return;
    }
    this.answered = {
      id: request.headers['call-id'],
      local: to,
      remote: request.headers.from,
      target: request.headers.contact[0].uri,
      routes: (request.headers['record-route'] || []).slice(),
      seq: 0,
    };
    accept();
  }

  endsSoon() {
    const call = this.answered;
    this.answered = undefined;
    this.hangUp(call).then(
      () => this.note('the BYE has a 200'),
      (error) => this.note(error.message),
    );
  }
}

function described(request) {
  request.headers['content-type'] = 'application/sdp';
  request.content = DESCRIPTION;
  return request;
}

async function attempt(name, run) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came within ${LIMIT_MS / 1000} s`)), LIMIT_MS);
  });
  try {
    console.log(`ok ${name} over ${transport}: ${await Promise.race([run(), late])}`);
  } catch (error) {
    console.log(`FAIL ${name} over ${transport}: ${error.message}`);
  } finally {
    clearTimeout(timer);
  }
}

function assertIs(found, wanted) {
  if (found !== wanted) throw new Error(`not ${wanted} but ${found}`);
}

async function main() {
  const all = {};
  await attempt('registration', async () => {
    for (const user of ['alice', 'bob', 'busy', 'ringing', 'short']) {
      all[user] = await Agent.start(user);
      assertIs(await all[user].register(password), 200);
    }
    return '5 agents';
  });
  const { alice, bob, ringing, short } = all;
  await attempt('wrong password', async () => {
    const status = await (await Agent.start('alice')).register('wrong');
    assertIs(status, 401);
    return status;
  });
  await attempt('call with a second INVITE', async () => {
    const { response, dialog } = await alice.call('bob');
    assertIs(response.status, 200);
    await bob.expect('ACK');
    await alice.invitesAgain(dialog);
    await bob.expect('INVITE');
    await bob.expect('ACK');
    await alice.hangUp(dialog);
    await bob.expect('BYE');
    return 'established and ended';
  });
  await attempt('call that the callee ends', async () => {
    const { response } = await alice.call('short');
    assertIs(response.status, 200);
    await alice.expect('BYE');
    await short.expect('the BYE has a 200');
    return 'the BYE came';
  });
  await attempt('busy callee', async () => {
    const { response } = await alice.call('busy');
    assertIs(response.status, 486);
    return response.status;
  });
  await attempt('unknown callee', async () => {
    const { response } = await alice.call('nobody');
    assertIs(response.status, 404);
    return response.status;
  });
  await attempt('cancelled call', async () => {
    let cancelled;
    const { response } = await alice.call('ringing', () => {
      cancelled = cancelled || alice.cancel();
    });
    assertIs(response.status, 487);
    await ringing.expect('CANCEL');
    assertIs(await cancelled, 200);
    return '487, and 200 to the CANCEL';
  });
  // Transactions of the package last for 32 s.
  process.exit(0);
}

main();
