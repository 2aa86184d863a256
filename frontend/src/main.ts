import { mount } from 'svelte'

import App from './App.svelte'
import { render } from './notebook/widget'
import './page.css'
import { Studio } from './state.svelte'
import { Client, exported, Files, Server } from './wire'

async function begin(target: HTMLElement): Promise<void> {
  const only = exported()
  const source = only ? new Files(() => studio.say('not_exported')) : new Server()
  const studio: Studio = new Studio(new Client(source), only?.trace ?? null)
  mount(App, { target, props: { studio } })
  await studio.start()
}

const page = document.getElementById('studio')
if (page) void begin(page)
else Object.assign(globalThis, { rheoscopeRender: render }) // a notebook, which calls it for every widget
