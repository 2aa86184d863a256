import { mount } from 'svelte'

import App from './App.svelte'
import './page.css'
import { Studio } from './state.svelte'
import { Client, exported, Files, held, Server } from './wire'

async function begin(): Promise<void> {
  const only = exported()
  const source = only ? new Files(await held(), () => studio.say('not_exported')) : new Server()
  const studio: Studio = new Studio(new Client(source), only?.trace ?? null)
  mount(App, { target: document.getElementById('studio')!, props: { studio } })
  await studio.start()
}

void begin()
